// The block-scaled product on sm_90a. The tensor cores sum 128 elements of k in registers (their
// sums of fp8 products keep fewer bits than f32), and each such part is scaled and added to f32
// totals by the ordinary pipelines while another warpgroup's products run. Tiles:
// arch/hopper/gemm.cuh.
#pragma once

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"

namespace weft::hopper {

inline constexpr int kFp8Block = 128;  ///< elements of k with one scale, and a stage's

/// What the kernel reads beside tiles: f32 scales of any strides, in elements.
struct BlockScales {
  const float* a = nullptr;  ///< a row of a, a block of k
  int64_t a_row = 0;
  int64_t a_block = 0;
  const float* b = nullptr;  ///< 128 rows of b, a block of k
  int64_t b_row = 0;
  int64_t b_block = 0;
  int m = 0;
  int n_blocks = 0;   ///< ceil(n / 128): scales of b, or of each group's
  bool bulk = false;  ///< the copy engine can take a's scales of one block of k: see bulk_scales()
};
/// Whether the scales of a that a tile needs lie together, in whole 16 bytes.
inline bool bulk_scales(const BlockScales& scales) {
  return scales.a_row == 1 && scales.a_block % 4 == 0 && scales.m % 4 == 0 &&
         reinterpret_cast<uintptr_t>(scales.a) % 16 == 0;
}

/// b's scales of kPageBlocks blocks of k of a tile, kScales for each block: of the tile's first 128
/// columns that share one, and of the next. They come by pages, far apart, because a warp that
/// brings a few numbers to every stage holds up small tiles.
inline constexpr int kPageBlocks = 32;
template <int kScales>
struct ScalePages {
  static constexpr int kPages = 2;
  float scales[kPages][kPageBlocks][kScales];
  Barrier full[kPages];
  Barrier empty[kPages];

  using Cursor = RingCursor<kPages>;
};
/// Blocks of 128 columns that a tile can touch: tiles begin at multiples of their width.
template <class Tile>
inline constexpr int kColumnScales = ceil_div(Tile::n + kFp8Block - std::gcd(Tile::n, kFp8Block),
                                              kFp8Block);
template <class Tile>
using Pages = ScalePages<kColumnScales<Tile>>;
/// Beside each stage: a scale for each row of the tile. Warps stage their rows of the result in
/// kParts parts.
template <class Tile, int kParts>
using Fp8SharedOf = GemmShared<Tile, ceil_div(Tile::m * 4, 128) * 128,
                               staging_bytes<Tile::n / kParts>(), sizeof(Pages<Tile>)>;
/// Columns that a warp stages at a time: all, unless they would leave the ring three stages, where
/// four are worth 2 to 7 % of a long product.
template <class Tile>
inline constexpr int kStagedColumns = Tile::own_blocks > 0                ? Tile::n / 2
                                      : Fp8SharedOf<Tile, 1>::kStages > 3 ? Tile::n
                                      : Tile::n % 32 == 0                 ? Tile::n / 2
                                                                          : Tile::n / 3;
/// (What another block sends of its sums in f32 comes to that place too.)
template <class Tile>
using Fp8Shared = Fp8SharedOf<Tile, (Tile::own_blocks > 0 ? 1 : Tile::n / kStagedColumns<Tile>)>;
template <class Tile>
__device__ Pages<Tile>& pages_of(const Fp8Shared<Tile>& shared) {
  return *static_cast<Pages<Tile>*>(shared.own());
}

/// Arrivals at a full barrier that feed_scales() makes.
__device__ inline int scale_arrivals(const BlockScales& scales) { return scales.bulk ? 0 : 32; }

/// The scales of a that the feeder of tiles loads, where the copy engine can.
template <class Tile>
struct RowScales {
  __device__ uint32_t start(const TileWork& work) {
    const int row = work.m * Tile::m;
    from = scales.a + row + work.k_begin * scales.a_block;
    bytes = scales.bulk ? max(0, min(Tile::m, scales.m - row)) * 4 : 0;
    return bytes;
  }
  __device__ void load(int slot, Barrier& full) const {
    if (bytes > 0) {
      load_bytes(shared.beside(slot), from, bytes, full);
    }
  }
  __device__ void advance() { from += scales.a_block; }
  __device__ void skip(int k_blocks) { from += k_blocks * scales.a_block; }

  const Fp8Shared<Tile>& shared;
  const BlockScales& scales;
  const float* from = nullptr;
  uint32_t bytes = 0;
};

/// The feeder of other scales: one warp.
template <class Tile, class Schedule>
__device__ void feed_scales(const Fp8Shared<Tile>& shared, const Schedule& schedule, TileWork work,
                            const BlockScales& scales, int lane) {
  constexpr int kScales = kColumnScales<Tile>;
  const int cluster_index = blockIdx.x / Tile::cluster;
  const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
  Pages<Tile>& pages = pages_of(shared);
  typename Pages<Tile>::Cursor page;
  typename Fp8Shared<Tile>::Cursor cursor;
  int round = 0;
  do {
    const int row = work.m * Tile::m;
    const int block = work.n * Tile::n / kFp8Block;
    const int before = Schedule::kGrouped ? work.group * scales.n_blocks : 0;
    for (int first_k = work.k_begin; first_k < work.k_end; first_k += kPageBlocks, page.advance()) {
      const int blocks = min(kPageBlocks, work.k_end - first_k);
      // (In tiles without own blocks nothing is skipped.)
      const auto along_k = [&](int k) {
        return Tile::own_blocks > 0 && k >= work.own_begin ? k + work.skip : k;
      };
      float mine[kScales] = {};
      const float* b =
          scales.b + (before + block) * scales.b_row + along_k(first_k + lane) * scales.b_block;
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        if (lane < blocks && block + i < scales.n_blocks) {
          mine[i] = b[i * scales.b_row];
        }
      }
      pages.empty[page.slot].wait(page.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        pages.scales[page.slot][lane][i] = mine[i];
      }
      pages.full[page.slot].arrive();
      if (scales.bulk) {
        continue;
      }
      for (int k = 0; k < blocks; ++k, cursor.advance()) {
        const float* a = scales.a + along_k(first_k + k) * scales.a_block;
        shared.empty(cursor.slot).wait(cursor.parity ^ 1);
        auto* to = reinterpret_cast<float*>(shared.beside(cursor.slot));
        for (int i = lane; i < Tile::m; i += 32) {
          const bool inside = row + i < scales.m;
          copy_async_4(to + i, inside ? a + (row + i) * scales.a_row : scales.a, inside);
        }
        shared.full(cursor.slot).arrive_after_copies();
      }
    }
  } while (tile_schedule<Tile>(schedule).work(cluster_index, ++round, rank, work));
}

/// A thread's scales of a stage: of row `row` of the tile and of row + 8, and of columns.
template <int kScales>
struct StageScales {
  float upper = 0;
  float lower = 0;
  float columns[kScales] = {};
};

/// totals += scale * part. place(i) is where column i of the part is, counted from the start of the
/// first block that shares a scale, see kColumnScales; kStep columns together are in one block.
/// Scales are selected by value; an index would put them into local memory.
template <int kStep, int kCount, int kScales, class Place>
__device__ __forceinline__ void add_scaled(float* totals, const float (&part)[kCount],
                                           const StageScales<kScales>& scales, const Place& place) {
#pragma unroll
  for (int first = 0; first < kCount; first += kStep / 2) {
    float columns = scales.columns[0];
#pragma unroll
    for (int i = 1; i < kScales; ++i) {
      columns = place(first * 2) < i * kFp8Block ? columns : scales.columns[i];
    }
    const float upper = scales.upper * columns;
    const float lower = scales.lower * columns;
#pragma unroll
    for (int i = first; i < first + kStep / 2; i += 4) {
      totals[i] += upper * part[i];
      totals[i + 1] += upper * part[i + 1];
      totals[i + 2] += lower * part[i + 2];
      totals[i + 3] += lower * part[i + 3];
    }
  }
}
/// Calls f with `x`, which is in [kLow, kHigh], as a constant.
template <int kLow, int kHigh, class F>
__device__ __forceinline__ void as_constant(int x, const F& f) {
  if constexpr (kLow == kHigh) {
    f(std::integral_constant<int, kLow>());
  } else {
    constexpr int kMiddle = (kLow + kHigh + 1) / 2;
    if (x < kMiddle) {
      as_constant<kLow, kMiddle - 1>(x, f);
    } else {
      as_constant<kMiddle, kHigh>(x, f);
    }
  }
}

/// Schedule: TileSchedule, or GroupedSchedule, whose groups may be written until the kernels before
/// are complete: then without `constant_b`.
template <class Tile, class Schedule>
__global__ void __launch_bounds__(Tile::threads, 1)
    gemm_fp8_blockwise_tile(const __grid_constant__ RowBoxes a, const __grid_constant__ RowBoxes b,
                            const __grid_constant__ CUtensorMap out,
                            const __grid_constant__ Schedule schedule,
                            const __grid_constant__ BlockScales scales, bool constant_b) {
  let_next_begin();
  using Shared = Fp8Shared<Tile>;
  static_assert(Shared::kStages >= 4);
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  Pages<Tile>& pages = pages_of(shared);
  if (warp == Tile::warps && elect_one()) {
    prefetch_maps<Tile::a_rows>(a);
    prefetch_maps<Tile::b_rows>(b);
  }
  shared.prepare(warp, 2 + scale_arrivals(scales), [&] {
    for (int page = 0; page < Pages<Tile>::kPages; ++page) {
      pages.full[page].init(32);
      pages.empty[page].init(Tile::warps);
    }
  });
  TileWork first = first_work<Tile>(tiles_of(schedule), warp);
  if constexpr (Schedule::kGrouped) {
    if (warp == Tile::warps) {
      // On its way to L2 meanwhile, where nothing is missed that is still being written.
      asm volatile("prefetch.global.L2 [%0];" ::"l"(schedule.group_of_tile(first)));
    }
  }
  shared.wait_prepared();
  if constexpr (Tile::own_blocks > 0) {
    cluster_arrive();  // see hand_over()
  }
  // What only b and its scales are read by.
  const bool of_b = warp == kFeederOfB<Tile> || (warp == Tile::warps + 2 && scales.bulk);
  if (!(constant_b && of_b)) {
    wait_for_earlier();
  }
  if constexpr (Schedule::kGrouped) {
    if (warp >= Tile::warps) {
      schedule.find_group(first);
    }
  }
  const int cluster_index = blockIdx.x / Tile::cluster;

  constexpr int kSums = Tile::n / 2;
  constexpr int kRowTiles = Tile::row_tiles;
  // A warpgroup that is alone has two sets of partial sums, so that the next block's products run
  // under the scaling of the last one's. Several scale under each other's products.
  constexpr bool kTwoSets = Tile::warpgroups == 1;
  static_assert(!kTwoSets || (kRowTiles == 1 && Tile::own_blocks == 0));
  if (warp >= Tile::warps) {
    lower_registers<Tile::feeder_registers>();
    if (warp == Tile::warps) {
      feed_tiles<Tile, Feed::own>(shared, schedule, first, operand_of<Tile, Feed::own>(a, b),
                                  kFp8Block);
    } else if (warp == Tile::warps + 1) {
      feed_tiles<Tile, Feed::common>(shared, schedule, first, operand_of<Tile, Feed::common>(a, b),
                                     kFp8Block, RowScales<Tile>{shared, scales});
    } else if (warp == Tile::warps + 2) {
      feed_scales<Tile>(shared, schedule, first, scales, lane);
    }
    attend_gathering<Tile>();
  } else {
    raise_registers<Tile::registers>();
    constexpr int kStep = std::gcd(Tile::n, kFp8Block);
    const int warpgroup = warp / 4;
    const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
    // Of each 64 rows this thread holds sums of row `row` and of row + 8.
    const int first_row = warpgroup * kRowTiles * 64;
    const int row = first_row + warp % 4 * 16 + lane / 4;
    const uint64_t first_stage = tile_descriptor(shared.a(0));
    typename Shared::Cursor cursor;
    typename Pages<Tile>::Cursor page;
    TileWork work;
    for (int round = 0; schedule.work(cluster_index, round, rank, work); ++round) {
      if (Schedule::kGrouped && work.k_begin == work.k_end) {
        continue;
      }
      float totals[kRowTiles * kSums] = {};
      using Scales = StageScales<kColumnScales<Tile>>;
      const int column = work.n * Tile::n % kFp8Block;
      // Steps of columns to the next block that shares a scale, or as many as there are.
      constexpr int kMostSteps = std::min(Tile::n, kFp8Block) / kStep;
      const int steps = min((kFp8Block - column) / kStep, kMostSteps);
      int k = work.k_begin;
      // The scales of block k, whose stage is there, and of rows `tile_row` and tile_row + 8.
      const auto row_scales = [&](int slot, int tile_row, Scales& to) {
        const auto* rows = reinterpret_cast<const float*>(shared.beside(slot));
        to.upper = rows[tile_row];
        to.lower = rows[tile_row + 8];
      };
      // Takes block k's scales of columns and goes on to the next.
      const auto pass = [&](Scales& to) {
        const int in_page = static_cast<unsigned>(k - work.k_begin) % kPageBlocks;
        if (in_page == 0) {
          pages.full[page.slot].wait(page.parity);
        }
        uint32_t read = 0;
#pragma unroll
        for (int i = 0; i < kColumnScales<Tile>; ++i) {
          to.columns[i] = pages.scales[page.slot][in_page][i];
          read |= __float_as_uint(to.columns[i]);
        }
        ++k;
        if (in_page == kPageBlocks - 1 || k == work.k_end) {
          __syncwarp();
          if (lane == 0) {
            pages.empty[page.slot].arrive_after(read);
          }
          page.advance();
        }
        cursor.advance();
      };
      const auto multiply = [&]<int kCount>(int slot, int tile, float(&part)[kCount]) {
        begin_products<E4m3, Shared>(first_stage, slot, first_row + tile * 64, part, false);
      };
      // Columns that have one scale, also where halves of the tile are turned.
      constexpr int kTogether = Tile::own_blocks > 0 ? std::gcd(kStep, Tile::n / 2) : kStep;
      const auto wait_for_stage = [&] { shared.full(cursor.slot).wait(cursor.parity); };
      // Goes on to block k_end of k with 2 * size columns; `meanwhile` comes beside products.
      const auto go_on = [&](auto size, int k_end, const auto& place, const auto& meanwhile) {
        wait_for_stage();
        while (true) {
          const int slot = cursor.slot;
          bool next_there = false;
          Scales now;
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
            float part[size()];
            multiply(slot, tile, part);
            row_scales(slot, row + 64 * tile, now);
            if (tile == 0) {
              pass(now);
            }
            meanwhile();
            wgmma_wait<0>();
            hold(part);
            if (tile == kRowTiles - 1) {
              // All lanes have read their scales: a product ago, so that an arrival need not wait
              // for the reads (Barrier::arrive_after()). (Where racecheck does not follow them to
              // lane 0's arrival it reports a race here: docs/journal/hopper-operations-checks.md.)
              __syncwarp();
              shared.release(slot, lane);
              // Asked before the scaling, which hides the answer's way.
              next_there = shared.full(cursor.slot).test(cursor.parity);
            }
            add_scaled<kTogether>(totals + tile * kSums, part, now, place);
          }
          if (k == k_end) {
            break;
          }
          if (!next_there) {
            wait_for_stage();
          }
        }
      };
      const auto nothing = [] {};
      // The same with two sets of partial sums: a block's products run under the scaling of the one
      // before.
      const auto by_two_sets = [&](const auto& place) {
        float parts[2][kSums];
        Scales last;  // of the products begun last; and their stage
        int last_slot = 0;
        const auto begin = [&]<int kPart>() {
          wait_for_stage();
          multiply(cursor.slot, 0, parts[kPart]);
        };
        const auto take_scales = [&] {
          last_slot = cursor.slot;
          row_scales(last_slot, row, last);
          pass(last);
        };
        const auto add = [&]<int kPart>() {
          hold(parts[kPart]);
          __syncwarp();  // all lanes have read their scales
          shared.release(last_slot, lane);
          add_scaled<kStep>(totals, parts[kPart], last, place);
        };
        // Adds the block in part 1 - kPart, beside the next one's products where there is one.
        const auto next = [&]<int kPart>() {
          if (k == work.k_end) {
            wgmma_wait<0>();
            add.template operator()<1 - kPart>();
            return false;
          }
          begin.template operator()<kPart>();
          wgmma_wait<1>();
          add.template operator()<1 - kPart>();
          take_scales();
          return true;
        };
        begin.template operator()<0>();
        take_scales();
        while (next.template operator()<1>() && next.template operator()<0>()) {
        }
      };
      const auto go_through = [&](const auto& place) {
        if constexpr (kTwoSets) {
          by_two_sets(place);
        } else {
          go_on(std::integral_constant<int, kSums>(), work.k_end, place, nothing);
        }
      };
      // Copies of the loop for each border of scales of columns, as to select a scale for each step
      // of columns takes as many instructions as half the multiply-adds. (With two row tiles that
      // takes longer, though.)
      if constexpr (Tile::own_blocks > 0) {
        static_assert(kColumnScales<Tile> == 2);
        constexpr int kPlaces = kFp8Block / kStep;  // of the tile's first column
        constexpr int kHalf = Tile::n / 2;
        constexpr std::integral_constant<int, kSums> kAll;
        constexpr std::integral_constant<int, kHalf / 2> kOwn;
        as_constant<0, 2 * kPlaces - 1>(kPlaces * work.part + column / kStep, [&](auto which) {
          const auto place = [](int i) {  // the block's own half comes first
            constexpr int kWhich = decltype(which)::value;
            return kWhich % kPlaces * kStep + (i + kWhich / kPlaces * kHalf) % Tile::n;
          };
          go_on(kAll, work.own_begin, place, nothing);
          go_on(kOwn, work.own_begin + 1, place,
                [&] { hand_over<Tile>(shared, work, totals, warp, lane); });
          go_on(kOwn, work.k_end, place, nothing);
        });
      } else if constexpr (kRowTiles == 1 && 1 < kColumnScales<Tile>) {
        as_constant<1, kMostSteps>(steps, [&](auto to_border) {
          go_through([](int i) { return kFp8Block - decltype(to_border)::value * kStep + i; });
        });
      } else {
        go_through([&](int i) { return column + i; });
      }
      if (gather_parts<Tile>(shared, work, totals, warp, lane)) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          constexpr int kColumns = kStagedColumns<Tile>;
          constexpr int kStored = Tile::n / (Tile::own_blocks > 0 ? 2 : 1);
          const int first_column =
              work.n * Tile::n + (Tile::own_blocks > 0 ? work.part * kStored : 0);
#pragma unroll
          for (int i = 0; i < kStored / kColumns; ++i) {
            store_rows<kColumns>(shared.staging(warp), out,
                                 work.m * Tile::m + first_row + 64 * tile + warp % 4 * 16,
                                 first_column + i * kColumns,
                                 reinterpret_cast<const float(&)[kColumns / 2]>(
                                     totals[tile * kSums + i * kColumns / 2]),
                                 lane);
          }
        }
      }
    }
    if (lane == 0) {
      wait_stores_read<0>();
    }
    __syncwarp();
  }
  leave_cluster<Tile>();
}

}  // namespace weft::hopper
