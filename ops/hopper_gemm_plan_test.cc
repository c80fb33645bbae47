#include "ops/hopper_gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "ops/gemm_bf16/hopper_plan.h"
#include "ops/gemm_fp8_blockwise/hopper_plan.h"
#include "ops/gemm_skinny/hopper_plan.h"
#include "ops/rmsnorm_quant/hopper_plan.h"
#include "ops/swiglu_quant/hopper_plan.h"

namespace weft::hopper {
namespace {

DeviceInfo h200() {
  DeviceInfo device;
  device.target = "sm_90a";
  device.arch = Arch::hopper;
  device.units = 132;
  return device;
}

TEST(HopperPlans, EveryShapeHasATile) {
  for (const int64_t m : {1, 63, 64, 1000, 6144, 100000}) {
    for (const int64_t n : {8, 576, 7168, 128256}) {
      GemmBf16Args bf16;
      bf16.m = m;
      bf16.n = n;
      bf16.k = 264;
      const Plan plan = plan_gemm_bf16(bf16, h200());
      EXPECT_NE(find_tile(plan, gemm_bf16_tiles()), nullptr) << to_text(plan);
      EXPECT_FALSE(plan.why.empty());

      GemmFp8BlockwiseArgs fp8;
      fp8.m = m;
      fp8.n = n;
      fp8.k = 384;
      fp8.a.dtype = fp8.b.dtype = DType::e4m3fn;
      const Plan tile = plan_gemm_fp8_blockwise(fp8, h200());
      EXPECT_NE(find_tile(tile, gemm_fp8_tiles(false)), nullptr) << to_text(tile);
      const auto candidates = gemm_fp8_blockwise_candidates(fp8, h200());
      EXPECT_FALSE(candidates.empty());
      for (const Plan& candidate : candidates) {
        const TileChoice* choice = find_tile(candidate, gemm_fp8_tiles(false));
        ASSERT_NE(choice, nullptr) << to_text(candidate);
        EXPECT_TRUE(schedule_of(tiled_product(fp8), *choice, h200()).parts_fit());
      }
    }
  }
}

TEST(HopperPlans, NoTileHasRowsOfTwoGroups) {
  const int32_t group_of = 0;  // read by nobody here
  GemmFp8BlockwiseArgs args;
  args.a.dtype = args.b.dtype = DType::e4m3fn;
  args.groups = 8;
  args.group_of = &group_of;
  args.k = 384;
  for (const int64_t m : {128, 1280, 32768}) {
    for (const int64_t n : {8, 1536, 7168}) {
      args.m = m;
      args.n = n;
      std::vector<Plan> plans = gemm_fp8_blockwise_candidates(args, h200());
      plans.push_back(plan_gemm_fp8_blockwise(args, h200()));
      EXPECT_FALSE(plans.back().why.empty());
      for (const Plan& plan : plans) {
        EXPECT_NE(find_tile(plan, gemm_fp8_tiles(true)), nullptr) << to_text(plan);
        EXPECT_EQ(kGroupRows % plan.tile_m, 0) << to_text(plan);
      }
    }
  }
  args.m = 32768;
  args.groups = 8;
  const std::string_view large = plan_key(args).format;
  args.groups = 128;
  EXPECT_NE(plan_key(args).format, large) << "a plan measured for large groups is none for small";
}

TEST(HopperPlans, FewTilesShareKAndManyDoNot) {
  GemmFp8BlockwiseArgs args;
  args.a.dtype = args.b.dtype = DType::e4m3fn;
  args.m = 256;
  args.n = 512;
  args.k = 16384;
  EXPECT_GT(choose_tile(tiled_product(args), gemm_fp8_tiles(false), h200()).splits, 1);
  args.m = 6144;
  args.n = 4608;
  args.k = 7168;
  EXPECT_EQ(choose_tile(tiled_product(args), gemm_fp8_tiles(false), h200()).splits, 1);
}

/// A shape that no table has, and the tile that was fastest for it on an H200, by 5 to 50 %.
struct Fastest {
  int64_t m, n, k;
  int tile_m, tile_n, splits;
};
template <class Args>
void expect_fastest(std::initializer_list<Fastest> fastest, Args args,
                    Plan (*plan_of)(const Args&, const DeviceInfo&)) {
  for (const Fastest& each : fastest) {
    args.m = each.m;
    args.n = each.n;
    args.k = each.k;
    const Plan plan = plan_of(args, h200());
    EXPECT_TRUE(plan.tile_m == each.tile_m && plan.tile_n == each.tile_n &&
                plan.splits == each.splits && plan.cluster == each.splits)
        << each.m << ", " << each.n << ", " << each.k << ": " << to_text(plan);
  }
}
TEST(HopperPlans, TheModelFindsWhatWasFastest) {
  GemmFp8BlockwiseArgs fp8;
  fp8.a.dtype = fp8.b.dtype = DType::e4m3fn;
  expect_fastest({{33, 1024, 8192, 64, 64, 4},
                  {96, 2112, 7168, 64, 64, 2},
                  {256, 4096, 4096, 64, 128, 1},
                  {500, 2112, 7168, 64, 144, 1},
                  {640, 2112, 7168, 128, 192, 2},
                  {640, 4096, 4096, 128, 160, 1},
                  {1000, 1600, 3072, 128, 128, 1},
                  {1500, 768, 2048, 128, 96, 1},
                  {1500, 3072, 1024, 128, 144, 1},
                  {3000, 1280, 8192, 256, 128, 1}},
                 fp8, plan_gemm_fp8_blockwise);
  expect_fastest({{64, 512, 7168, 64, 64, 4},
                  {64, 2112, 7168, 64, 64, 2},
                  {384, 4096, 4096, 128, 96, 1},
                  {500, 2112, 7168, 128, 64, 1},
                  {640, 4096, 4096, 128, 160, 1},
                  {700, 1536, 1536, 64, 128, 1},
                  {256, 25600, 5120, 128, 224, 1},
                  {3000, 512, 7168, 128, 128, 1},
                  {4096, 1024, 4096, 128, 256, 1}},
                 GemmBf16Args(), plan_gemm_bf16);
}

TEST(HopperPlans, WholeKIsNotCutHoweverFewTheTiles) {
  GemmBf16Args args;
  bool cut = false;
  for (const int64_t m : {1, 20, 64, 100, 512}) {
    for (const int64_t n : {64, 1024, 2048, 4096, 28672}) {
      for (const int64_t k : {264, 2048, 14336}) {
        args.m = m;
        args.n = n;
        args.k = k;
        args.whole_k = false;
        const Plan usual = plan_gemm_bf16(args, h200());
        cut = cut || usual.splits > 1;
        EXPECT_GT(usual.tile_n, 32) << to_text(usual);
        args.whole_k = true;
        const Plan plan = plan_gemm_bf16(args, h200());
        EXPECT_EQ(plan.splits, 1) << to_text(plan);
        EXPECT_NE(find_tile(plan, gemm_bf16_tiles()), nullptr) << to_text(plan);
      }
    }
  }
  EXPECT_TRUE(cut);
  // A step of 64 sequences of Llama-3.1-8B: a block for nearly every multiprocessor.
  args.m = 64;
  args.n = 4096;
  args.k = 14336;
  EXPECT_EQ(plan_gemm_bf16(args, h200()).tile_n, 32);
}

TEST(HopperPlans, WhatTheDeviceCannotDoIsSaid) {
  GemmFp8BlockwiseArgs fp8;
  fp8.a.dtype = fp8.b.dtype = DType::e4m3fnuz;
  fp8.m = fp8.n = fp8.k = 128;
  EXPECT_TRUE(plan_gemm_fp8_blockwise(fp8, h200()).kernel.empty());
  EXPECT_TRUE(gemm_fp8_blockwise_candidates(fp8, h200()).empty());
  GemmSkinnyArgs skinny;
  skinny.a.dtype = skinny.b.dtype = DType::e4m3fnuz;
  EXPECT_TRUE(plan_gemm_skinny(skinny, h200()).kernel.empty());
  RmsNormQuantArgs norm;
  norm.y.out.dtype = DType::e4m3fnuz;
  EXPECT_FALSE(plan_rmsnorm_quant(norm, h200()).why.empty());
  EXPECT_TRUE(plan_rmsnorm_quant(norm, h200()).kernel.empty());
  SwigluQuantArgs swiglu;
  swiglu.y.out.dtype = DType::e4m3fnuz;
  EXPECT_TRUE(plan_swiglu_quant(swiglu, h200()).kernel.empty());
}

TEST(HopperPlans, TurnedOperandsHaveRoom) {
  GemmFp8BlockwiseArgs args;
  args.m = 3;
  args.n = 8;
  args.k = 128;
  EXPECT_EQ(fp8_workspace(args).bytes, 0U);
  args.layout = Fp8Layout::mn_major;
  const Fp8Workspace places = fp8_workspace(args);
  EXPECT_GE(places.a, kCounterBytes);
  EXPECT_GE(places.b, places.a + 3 * 128);
  EXPECT_GE(places.bytes, places.b + 8 * 128);
}

TEST(HopperPlans, OneRowNeedsNoTensorCores) {
  GemmSkinnyArgs args;
  args.n = 2304;
  args.k = 16384;
  DeviceInfo device = h200();
  for (const DType type : {DType::bf16, DType::e4m3fn}) {
    args.a.dtype = args.b.dtype = type;
    args.scaling = type == DType::bf16 ? Scaling::none : Scaling::tensor;
    for (const int units : {132, 114}) {  // with a table of measured plans, and without
      device.units = units;
      args.m = 1;
      const Plan one = plan_gemm_skinny(args, device);
      EXPECT_TRUE(is_vector(one)) << one.kernel;
      EXPECT_LE(one.threads, kVectorMostWarps * 32);
      args.m = 2;  // a table's row for one row is near enough, but its kernel is not
      EXPECT_FALSE(is_vector(plan_gemm_skinny(args, device)));
    }
  }
  device.l2 = size_t{60} << 20;
  EXPECT_TRUE(reads_once(args, device));
  args.n = 65536;
  EXPECT_FALSE(reads_once(args, device));
}

TEST(HopperPlans, LongBlocksThatLeavePlacesFreeLetTheNextKernelInLate) {
  GemmSkinnyArgs args;
  args.a.dtype = args.b.dtype = DType::bf16;
  DeviceInfo device = h200();
  device.shared_memory = 227 << 10;
  const auto late = [&](int n, int k) {
    args.n = n;
    args.k = k;
    return lets_next_begin_late(args, 16, 72 << 10, device);
  };
  EXPECT_TRUE(late(2048, 16384));
  EXPECT_FALSE(late(2048, 8192)) << "short, one for each multiprocessor";
  EXPECT_TRUE(late(2304, 8192)) << "two for some multiprocessors";
  EXPECT_FALSE(late(2304, 4096)) << "shorter still";
  EXPECT_FALSE(late(6144, 16384)) << "nearly all places are taken";
  EXPECT_FALSE(late(13312, 16384)) << "they come one after the other";
}

TEST(HopperPlans, SmallBlocksTakeWholeRowsOfFewGroups) {
  GemmSkinnyArgs args;
  args.a.dtype = args.b.dtype = DType::bf16;
  args.n = 3072;
  args.k = 8192;  // not in the table
  for (const auto& [m, rows] : {std::pair{2, 8}, std::pair{9, 16}, std::pair{32, 32}}) {
    args.m = m;
    const Plan plan = plan_gemm_skinny(args, h200());
    EXPECT_EQ(plan.kernel, "dealt") << m;
    EXPECT_EQ(plan.tile_m, rows);
    const std::vector<Plan> candidates = gemm_skinny_candidates(args, h200());
    EXPECT_NE(std::find(candidates.begin(), candidates.end(), plan), candidates.end());
  }
  // A measured plan for small blocks is none for so many rows that there are no such blocks.
  GemmSkinnyArgs fp8;
  fp8.a.dtype = fp8.b.dtype = DType::e4m3fn;
  fp8.scaling = Scaling::block;
  fp8.n = 2112;
  fp8.k = 7168;
  fp8.m = 16;
  EXPECT_EQ(plan_gemm_skinny(fp8, h200()).kernel, "dealt");
  fp8.m = 20;
  EXPECT_EQ(plan_gemm_skinny(fp8, h200()).kernel, "stream");
  args.k = 8192 + 16;  // rows that end within a chunk of 128 bytes
  EXPECT_EQ(plan_gemm_skinny(args, h200()).kernel, "stream");
  args.k = 8192;
  args.n = 32768;
  EXPECT_EQ(plan_gemm_skinny(args, h200()).kernel, "stream");
}

TEST(SkinnyShares, CoverEveryStageOnce) {
  for (const int cluster : {1, 2, 4, 8}) {
    for (const int groups : {1, 5, 36, 300}) {
      for (const int stages : {1, 7, 64}) {
        const SkinnyShares shares{.groups = groups,
                                  .stages_of_k = stages,
                                  .cluster = cluster,
                                  .clusters = std::min(132 / cluster, groups)};
        std::vector<int> times(static_cast<size_t>(groups) * stages);
        for (int block = 0; block < shares.blocks(); ++block) {
          SkinnyRun run;
          for (int index = 0; shares.run(block / cluster, block % cluster, index, run); ++index) {
            for (int stage = run.begin; stage < run.end; ++stage) {
              ++times[run.group * stages + stage];
            }
          }
        }
        EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int n) { return n == 1; }))
            << groups << " " << stages << " " << cluster;
      }
    }
  }
}

}  // namespace
}  // namespace weft::hopper
