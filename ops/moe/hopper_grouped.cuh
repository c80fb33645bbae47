// Experts' products in bf16 for slots that are many to an expert, on sm_90a: wgmma from a ring of
// stages as gemm.cuh has it, by blocks that stay and take one tile of one expert after another. A
// warpgroup feeds: the copy engine brings weights, threads gather rows by slot. Tiles of the same
// weights follow one another, so that what one block reads of memory, others find in L2.
#pragma once

#include "arch/device.h"
#include "arch/hopper/attention.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/warp.cuh"
#include "base/divide.h"
#include "ops/moe/hopper_slots.cuh"

namespace weft::hopper {

/// kRowCount slots (64 or 192) times kWeightRows rows of weights: of gated products half of gate
/// and as many of up, so that a thread has both sums of a column. Two warpgroups share the columns
/// of 64 slots, or three have 64 slots each: an expert whose slots are one tile reads its weights
/// once.
template <int kRowCount, bool kIsGated, int kWeightRows = 256>
struct GroupedTile {
  static constexpr bool kGated = kIsGated;
  static constexpr int m = kRowCount;
  static constexpr int n = kWeightRows;
  static constexpr int warps = m == 64 ? 8 : 12;
  static constexpr int threads = warps * 32 + 128;
  static constexpr int parts = 1;
  static constexpr int sharing = 1;
  static constexpr int own_blocks = 0;
  static constexpr int registers = m == 64 ? 208 : 160;
  static constexpr int feeder_registers = m == 64 ? 88 : 32;

  static constexpr int kHalf = n / 2;                           ///< rows of weights in a box
  static constexpr int kOutColumns = kGated ? kHalf : n;        ///< of out, in a tile
  static constexpr int kProduct = m == 64 ? kHalf / 2 : kHalf;  ///< columns of one of two products
  static constexpr int kBlock = kRowBytes / Bf16::kBytes;       ///< elements of k in a stage
  static constexpr int kGatherers = 128;
  static constexpr int kGathered = m * (kRowBytes / 16) / kGatherers;  ///< pieces, of a thread

  /// Where a warpgroup's products have their rows of a, and of weights.
  __device__ static int row(int warpgroup) { return m == 64 ? 0 : 64 * warpgroup; }
  __device__ static int weight_row(int warpgroup, int product) {
    return m > 64   ? kHalf * product
           : kGated ? kHalf * product + kProduct * warpgroup
                    : kHalf * warpgroup + kProduct * product;
  }
  /// The column of out, in the tile, of a product's first.
  __device__ static int column(int warpgroup, int product) {
    return kGated ? weight_row(warpgroup, product) % kHalf : weight_row(warpgroup, product);
  }
};
/// Beside the ring: count_tiles().
template <class Tile>
using GroupedShared = GemmShared<Tile, 0, 0, (kMostRouted + 1) * 4>;

/// A block's next tile.
struct GroupedWork {
  int expert;
  int first_row;  ///< among the expert's slots
  int column;     ///< the tile's, of tiles
};

/// tiles[e]: those along the rows of all experts before e. By one warp.
__device__ inline void count_tiles(const PrefillDraw& drawn, int rows, int* tiles) {
  const auto experts = static_cast<int>(drawn.experts);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int before = 0;
  for (int first = 0; first < experts; first += 32) {
    const int e = first + lane;
    const int own = e < experts ? ceil_div(drawn.order[e + 1] - drawn.order[e], rows) : 0;
    const int upto = sum_up_to(lane, own);
    if (e < experts) {
      tiles[e] = before + upto - own;
    }
    before += __shfl_sync(~0u, upto, 31);
  }
  if (lane == 0) {
    tiles[experts] = before;
  }
}

/// Whose the `item`-th tile is, of `columns` for each that tiles[] counts: the last expert that
/// begins with it or before, so one that has tiles.
__device__ inline int expert_of_tile(const int* tiles, int experts, int columns, int item) {
  int expert = 0;
  for (int end = experts; end - expert > 1;) {
    const int middle = (expert + end) / 2;
    (tiles[middle] * columns <= item ? expert : end) = middle;
  }
  return expert;
}

/// The block's `round`-th tile; false: there is none.
template <class Tile>
__device__ bool grouped_work(const SlotsProduct& args, const int* tiles, int round,
                             GroupedWork& work) {
  const auto experts = static_cast<int>(args.drawn.experts);
  const int columns = ceil_div(args.n, Tile::kOutColumns);
  const auto item = static_cast<int>(blockIdx.x + round * gridDim.x);
  if (item >= tiles[experts] * columns) {
    return false;
  }
  const int expert = expert_of_tile(tiles, experts, columns, item);
  const int own = tiles[expert + 1] - tiles[expert];
  const int rest = item - tiles[expert] * columns;
  work = {expert, rest % own * Tile::m, rest / own};
  return true;
}

/// The feeding warpgroup. Rows that are not there stay what they were: nobody stores their sums.
template <class Tile, class Shared>
__device__ void feed_grouped(const Shared& shared, const SlotsProduct& args, const int* tiles,
                             const CUtensorMap& first, const CUtensorMap& second) {
  const int thread = static_cast<int>(threadIdx.x) - Tile::warps * 32;
  constexpr int kRowPieces = kRowBytes / 16;
  constexpr int kRowStep = Tile::kGatherers / kRowPieces;
  const int piece = thread % kRowPieces;
  const int row = thread / kRowPieces;
  const int steps = ceil_div(args.k, Tile::kBlock);
  const bool brings_weights = thread == 0;
  typename Shared::Cursor cursor;
  GroupedWork work;
  for (int round = 0; grouped_work<Tile>(args, tiles, round, work); ++round) {
    const OwnSlots own = slots_of(args.drawn, work.expert);
    // Of the threads that bring a row's pieces each knows some of their rows.
    int known[ceil_div(Tile::kGathered, kRowPieces)];
#pragma unroll
    for (int i = 0; i < Tile::kGathered; i += kRowPieces) {
      const int at = work.first_row + row + (i + piece) * kRowStep;
      known[i / kRowPieces] =
          i + piece < Tile::kGathered && at < own.count ? own.slots[at] / args.per_row : -1;
    }
    for (int step = 0; step < steps; ++step, cursor.advance()) {
      const int slot = cursor.slot;
      Barrier& full = shared.full(slot);
      shared.empty(slot).wait(cursor.parity ^ 1);
      if (brings_weights) {
        full.arrive_expect(Shared::kBBytes);
        const int k = step * Tile::kBlock;
        char* const to = shared.b(slot);
        load_plane_tile(to, first, k, work.column * Tile::kOutColumns, work.expert, full);
        load_plane_tile(to + Tile::kHalf * kRowBytes, second, k,
                        work.column * Tile::kOutColumns + (Tile::kGated ? 0 : Tile::kHalf),
                        work.expert, full);
      }
      const int at = step * Tile::kBlock + piece * 8;
#pragma unroll
      for (int i = 0; i < Tile::kGathered; ++i) {
        const int from = __shfl_sync(~0u, known[i / kRowPieces], i % kRowPieces, kRowPieces);
        if (from >= 0) {
          const int r = row + i * kRowStep;
          const bool there = at < args.k;
          copy_async_16(shared.a(slot) + r * kRowBytes + (piece ^ r % 8) * 16,
                        static_cast<const uint16_t*>(args.a.data) + int64_t{from} * args.a.stride +
                            (there ? at : 0),
                        there);
        }
      }
      full.arrive_after_copies();
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    multiply_grouped(const __grid_constant__ SlotsProduct args,
                     const __grid_constant__ CUtensorMap first,
                     const __grid_constant__ CUtensorMap second) {
  using Shared = GroupedShared<Tile>;
  let_next_begin();
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(memory);
  int* const tiles = static_cast<int*>(shared.own());
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp == Tile::warps && elect_one()) {
    prefetch_map(first);
    prefetch_map(second);
  }
  shared.prepare(warp, 1 + Tile::kGatherers);
  wait_for_earlier();
  if (warp == 0) {
    count_tiles(args.drawn, Tile::m, tiles);
  }
  shared.wait_prepared();

  if (warp >= Tile::warps) {
    lower_registers<Tile::feeder_registers>();
    feed_grouped<Tile>(shared, args, tiles, first, second);
  } else {
    raise_registers<Tile::registers>();
    const int warpgroup = warp / 4;
    const int steps = ceil_div(args.k, Tile::kBlock);
    const uint64_t ring = tile_descriptor(shared.a(0));
    typename Shared::Cursor cursor;
    GroupedWork work;
    for (int round = 0; grouped_work<Tile>(args, tiles, round, work); ++round) {
      const OwnSlots own = slots_of(args.drawn, work.expert);
      if (work.first_row + Tile::row(warpgroup) >= own.count) {  // none of its rows is there
        for (int step = 0; step < steps; ++step, cursor.advance()) {
          shared.full(cursor.slot).wait(cursor.parity);
          shared.release(cursor.slot, lane);
        }
        continue;
      }
      float sums[2][Tile::kProduct / 2];
      int last_slot = -1;
      for (int step = 0; step < steps; ++step, cursor.advance()) {
        const int slot = cursor.slot;
        shared.full(slot).wait(cursor.parity);
        fence_shared();  // rows came by ordinary copies
        const uint64_t stage = advance_steps<Shared::kStageBytes>(ring, slot);
        const uint64_t a = advance_steps<kRowBytes>(stage, Tile::row(warpgroup));
#pragma unroll
        for (int product = 0; product < 2; ++product) {
          begin_row_products<Bf16, Shared::kABytes>(
              sums[product], a,
              advance_steps<kRowBytes>(stage, Tile::weight_row(warpgroup, product)), step > 0);
        }
        wgmma_wait<2>();  // those of the stage before are done: its slot is free
        if (last_slot >= 0) {
          shared.release(last_slot, lane);
        }
        last_slot = slot;
      }
      wgmma_wait<0>();
      hold(sums[0]);
      hold(sums[1]);
      shared.release(last_slot, lane);

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = work.first_row + Tile::row(warpgroup) + warp % 4 * 16 + half * 8 + lane / 4;
        if (row >= own.count) {
          continue;
        }
        const int64_t to = own.slots[row] * args.out.stride;
#pragma unroll
        for (int product = 0; product < (Tile::kGated ? 1 : 2); ++product) {
          const int begin =
              work.column * Tile::kOutColumns + Tile::column(warpgroup, product) + lane % 4 * 2;
#pragma unroll
          for (int j = 0; j < Tile::kProduct / 8; ++j) {
            if (begin + j * 8 < args.n) {
              store_columns<Tile::kGated>(args, work.expert, to, begin + j * 8,
                                          sums[product] + j * 4 + half * 2,
                                          sums[1] + j * 4 + half * 2);
            }
          }
        }
      }
    }
  }
}

/// Starts it. Errors: device.
template <int kRows, bool kGated, int kWeightRows = 256>
Status launch_grouped(const SlotsProduct& args, Stream stream) {
  using Tile = GroupedTile<kRows, kGated, kWeightRows>;
  const auto map = [&](const ExpertMatrices& w) {
    return tensor_map({.data = w.first.data,
                       .format = MapFormat::bf16,
                       .rows = args.n,
                       .columns = args.k,
                       .stride_bytes = w.first.stride * 2,
                       .box_rows = Tile::kHalf,
                       .box_columns = Tile::kBlock,
                       .planes = args.drawn.experts,
                       .plane_bytes = w.pitch});
  };
  WEFT_ASSIGN(const CUtensorMap first, map(args.w[0]));
  WEFT_ASSIGN(const CUtensorMap second, map(args.w[kGated ? 1 : 0]));
  return launch_kernel(multiply_grouped<Tile>,
                       {.blocks = stream.device->info().units,
                        .threads = Tile::threads,
                        .shared_bytes = GroupedShared<Tile>::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, first, second);
}

}  // namespace weft::hopper
