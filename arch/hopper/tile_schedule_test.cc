#include "arch/hopper/tile_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace weft::hopper {
namespace {

TEST(Layout, SwizzleIsAnInvolutionThatSpreadsColumns) {
  std::set<uint32_t> seen;
  for (uint32_t offset = 0; offset < 2 * kSwizzleBytes; offset += 16) {
    EXPECT_EQ(swizzle_128(swizzle_128(offset)), offset);
    EXPECT_EQ(swizzle_128(offset) / kRowBytes, offset / kRowBytes);  // stays in its row
    seen.insert(swizzle_128(offset));
  }
  EXPECT_EQ(seen.size(), 2U * kSwizzleBytes / 16);
  // Eight rows of one column lie in different banks.
  std::set<uint32_t> banks;
  for (uint32_t row = 0; row < 8; ++row) {
    banks.insert(swizzle_128(row * kRowBytes + 48) % kRowBytes);
  }
  EXPECT_EQ(banks.size(), 8U);
}

TEST(Layout, AccumulatorsCoverATileOnce) {
  constexpr int kColumns = 144;
  std::set<std::pair<int, int>> seen;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < kColumns / 2; ++i) {
      const Coordinate at = accumulator_coordinate(thread, i);
      EXPECT_TRUE(at.row >= 0 && at.row < 64 && at.column >= 0 && at.column < kColumns);
      EXPECT_TRUE(seen.insert({at.row, at.column}).second);
    }
  }
  EXPECT_EQ(seen.size(), 64U * kColumns);
}

TEST(Divisor, DividesExactly) {
  for (const int by : {1, 2, 3, 5, 7, 8, 96, 127, 128, 129, 1000, 65535, 65536, 2147483647}) {
    const Divisor divisor(by);
    for (const int x : {0, 1, 2, 3, by - 1, by, by / 2, 65535, 999999, 1 << 30, 2147483647}) {
      EXPECT_EQ(divisor.divide(x), x / by) << x << " / " << by;
    }
    for (int multiple = 1; multiple <= 2147483647 / by && multiple < 5000; ++multiple) {
      EXPECT_EQ(divisor.divide(multiple * by), multiple);
      EXPECT_EQ(divisor.divide(multiple * by - 1), multiple - 1);
    }
  }
}

/// Every block of k of both halves of every tile is multiplied once, and blocks that share an
/// operand's tile in a round are at work together.
void expect_complete(const TileSchedule& schedule) {
  std::map<std::tuple<int, int, int, int>, int> times;
  int most = 0;
  const int size = schedule.cluster * schedule.parts;
  for (int cluster = 0; cluster < schedule.blocks() / size; ++cluster) {
    int blocks_of_k = 0;
    for (int rank = 0; rank < size; ++rank) {
      TileWork work;
      int mine = 0;
      for (int round = 0; schedule.work(cluster, round, rank, work); ++round) {
        TileWork first;
        ASSERT_TRUE(schedule.work(cluster, round, 0, first));
        EXPECT_EQ(work.part, schedule.parts > 1 ? rank : 0);
        EXPECT_EQ(schedule.share_a ? first.m : first.n, schedule.share_a ? work.m : work.n);
        EXPECT_TRUE(schedule.parts == 1 || (first.m == work.m && first.n == work.n));
        for (int k = work.k_begin; k < work.k_end; ++k) {
          const bool own_only = schedule.own_blocks > 0 && k >= work.own_begin;
          for (int half = 0; half < 2; ++half) {
            if (!own_only || half == work.part) {
              ++times[{work.m, work.n, half, own_only ? k + work.skip : k}];
            }
          }
        }
        mine += work.k_end - work.k_begin;
      }
      if (rank == 0) {
        blocks_of_k = mine;
      }
      EXPECT_EQ(mine, blocks_of_k);  // the blocks of a cluster stay in step
      most = std::max(most, mine);
    }
  }
  const int own = std::min(schedule.own_blocks, schedule.k_blocks - 2);
  EXPECT_EQ(most, schedule.rounds() * schedule.k_blocks / schedule.parts + std::max(own, 0) / 2);
  for (int m = 0; m < schedule.m_tiles; ++m) {
    for (int n = 0; n < schedule.n_tiles; ++n) {
      for (int k = 0; k < schedule.k_blocks; ++k) {
        for (int half = 0; half < 2; ++half) {
          EXPECT_EQ((times[{m, n, half, k}]), 1) << m << " " << n << " " << half << " " << k;
        }
      }
    }
  }
}

TEST(TileSchedule, CoversEveryTileOnce) {
  int cut = 0;
  for (const int size : {1, 2, 4}) {
    for (const bool share_a : {true, false}) {
      for (const auto& [m, n, k] :
           {std::tuple{1, 1, 1}, std::tuple{5, 7, 3}, std::tuple{8, 5, 4}, std::tuple{32, 4, 2},
            std::tuple{9, 31, 8}, std::tuple{3, 4, 8}}) {
        for (const int clusters : {132 / size, 3}) {
          const TileSchedule sharing{.m_tiles = m,
                                     .n_tiles = n,
                                     .k_blocks = k,
                                     .cluster = size,
                                     .share_a = share_a,
                                     .clusters = clusters,
                                     .band = 4};
          expect_complete(sharing);
          const TileSchedule cutting{.m_tiles = m,
                                     .n_tiles = n,
                                     .k_blocks = k,
                                     .share_a = share_a,
                                     .parts = size,
                                     .clusters = clusters,
                                     .band = 4};
          if (size > 1 && cutting.parts_fit()) {
            expect_complete(cutting);
            ++cut;
          }
        }
      }
    }
  }
  EXPECT_GT(cut, 4);
}

TEST(TileSchedule, TwoPartsLeaveBlocksForTheirOwnHalves) {
  for (const int k : {4, 6, 12, 56}) {
    const TileSchedule schedule{.m_tiles = 3,
                                .n_tiles = 5,
                                .k_blocks = k,
                                .parts = 2,
                                .own_blocks = 4,
                                .clusters = 66,
                                .band = 4};
    ASSERT_TRUE(schedule.parts_fit());
    expect_complete(schedule);
  }
  const TileSchedule too_short{
      .m_tiles = 1, .n_tiles = 1, .k_blocks = 2, .parts = 2, .own_blocks = 4, .clusters = 66};
  EXPECT_FALSE(too_short.parts_fit());
}

TEST(GroupedSchedule, TilesKnowTheirGroupAndThoseOfNobodyHaveNoK) {
  constexpr int32_t kGroupOf[] = {3, -1, 0};
  for (const int shift : {0, 1}) {
    const GroupedSchedule schedule{
        .tiles = {.m_tiles = 3 << shift, .n_tiles = 5, .k_blocks = 4, .clusters = 2, .band = 2},
        .group_of = kGroupOf,
        .shift = shift};
    std::set<std::pair<int, int>> seen;
    for (int cluster = 0; cluster < 2; ++cluster) {
      TileWork work;
      for (int round = 0; schedule.work(cluster, round, 0, work); ++round) {
        const int group = kGroupOf[work.m >> shift];
        EXPECT_EQ(work.group, group);
        EXPECT_EQ(work.k_end - work.k_begin, group < 0 ? 0 : 4);
        seen.insert({work.m, work.n});
      }
    }
    EXPECT_EQ(seen.size(), (3U << shift) * 5);
  }
}

}  // namespace
}  // namespace weft::hopper
