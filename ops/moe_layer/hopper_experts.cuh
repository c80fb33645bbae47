// Products of slots with their experts' f16 weights as they lie, [in, out], on sm_90a. The product
// is turned: 256 columns of weights are the long side of a tile, whose 64 wide strips wgmma takes
// as they are, rows of x the other, of which there are as many as 16 divides and no more. The
// blocks of a cluster have rows of one expert each and share the tile of weights. One warpgroup
// feeds: the copy engine brings weights, threads gather rows by slot. Experts' rows are dealt
// evenly to the tiles that they need.
#pragma once

#include <cuda_fp16.h>

#include "arch/device.h"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/wgmma_columns.cuh"
#include "base/divide.h"
#include "ops/hopper_activation.cuh"
#include "ops/moe/hopper_grouped.cuh"
#include "ops/moe_layer/op.h"

namespace weft::hopper {

/// Up to kRows rows times 256 columns of weights: of gated products 128 of gate and as many of up,
/// so that a thread has both sums of an element. Of each two strips of 64 columns, each warpgroup
/// has one.
template <int kRows, int kClusterBlocks, bool kIsGated>
struct LayerTile {
  static constexpr bool kGated = kIsGated;
  static constexpr int m = kRows;
  static constexpr int n = 256;
  static constexpr int cluster = kClusterBlocks;
  static constexpr int sharing = cluster;
  static constexpr int parts = 1;
  static constexpr int own_blocks = 0;
  static constexpr int warps = 8;
  static constexpr int threads = warps * 32 + 128;
  static constexpr int registers = 224;
  static constexpr int feeder_registers = 56;
  /// Of a thread at the launch. Those that multiply take what the feeders give back, and no more:
  /// they would wait for it forever.
  static constexpr int launch_registers = 65536 / threads / 8 * 8;
  static_assert(warps * 32 * (registers - launch_registers) ==
                128 * (launch_registers - feeder_registers));

  static constexpr int kBytes = static_cast<int>(sizeof(f16));
  static constexpr int kBlock = kRowBytes / kBytes;  ///< elements of k in a stage
  static constexpr int kStrip = kRowBytes / kBytes;  ///< columns of weights in a box
  static constexpr int kStrips = n / kStrip;
  static constexpr int kStripBytes = kBlock * kRowBytes;
  static constexpr int kOutColumns = kGated ? n / 2 : n;  ///< of out, in a tile
  static constexpr int kUnit = 16;                        ///< rows that tiles are cut at
  static constexpr int kGatherers = 128;
  static constexpr int kGathered = m * (kRowBytes / 16) / kGatherers;  ///< pieces, of a thread
};

/// The matrices of all experts.
struct LayerMaps {
  CUtensorMap w[2][kMostLayerExperts];  ///< gate and up, or one alone
};
/// out[slot] = a[slot / per_row] w, or the gated one of two.
struct LayerProduct {
  ConstMatrix a;
  PrefillDraw drawn;
  int32_t per_row = 1;  ///< slots that share a row of a
  int32_t n = 0, k = 0;
  Matrix out;
};

/// Beside the ring: count_tiles().
template <class Tile>
using LayerShared = GemmShared<Tile, 0, 0, round_up((kMostLayerExperts + 1) * 4, int64_t{16})>;

/// A block's part of its cluster's next tiles.
struct LayerWork {
  int expert;
  int first_row;  ///< among the expert's slots
  int rows;       ///< may be none
  int column;     ///< the tile's, of tiles
};

/// The `round`-th; false: there is none. The last expert, which all rows may have, comes first:
/// what is left at the end is short.
template <class Tile>
__device__ bool layer_work(const LayerProduct& args, const int* tiles, int rank, int round,
                           LayerWork& work) {
  const auto experts = static_cast<int>(args.drawn.experts);
  const int columns = ceil_div(args.n, Tile::kOutColumns);
  const auto clusters = static_cast<int>(gridDim.x) / Tile::cluster;
  const int item = tiles[experts] * columns - 1 - static_cast<int>(blockIdx.x) / Tile::cluster -
                   round * clusters;
  if (item < 0) {
    return false;
  }
  const int expert = expert_of_tile(tiles, experts, columns, item);
  const int own = tiles[expert + 1] - tiles[expert];
  const int rest = item - tiles[expert] * columns;
  const int count = args.drawn.order[expert + 1] - args.drawn.order[expert];
  const int each = round_up(ceil_div(count, own * Tile::cluster), Tile::kUnit);
  const int first = (rest % own * Tile::cluster + rank) * each;
  work = {expert, first, max(0, min(each, count - first)), rest / own};
  return true;
}

/// The feeding warpgroup. Rows that are not there stay what they were: nobody stores their sums.
template <class Tile, class Shared>
__device__ void feed_layer(const Shared& shared, const LayerProduct& args, const LayerMaps& maps,
                           const int* tiles, int rank) {
  const int thread = static_cast<int>(threadIdx.x) - Tile::warps * 32;
  constexpr int kRowPieces = kRowBytes / 16;
  constexpr int kRowStep = Tile::kGatherers / kRowPieces;
  constexpr int kOwnStrips = Tile::kStrips / Tile::cluster;
  const int piece = thread % kRowPieces;
  const int row = thread / kRowPieces;
  const int steps = ceil_div(args.k, Tile::kBlock);
  const bool brings_weights = thread == 0;
  typename Shared::Cursor cursor;
  LayerWork work;
  for (int round = 0; layer_work<Tile>(args, tiles, rank, round, work); ++round) {
    const OwnSlots own = slots_of(args.drawn, work.expert);
    // Of the threads that bring a row's pieces each knows some of their rows.
    int known[ceil_div(Tile::kGathered, kRowPieces)];
#pragma unroll
    for (int i = 0; i < Tile::kGathered; i += kRowPieces) {
      const int at = row + (i + piece) * kRowStep;
      known[i / kRowPieces] = i + piece < Tile::kGathered && at < work.rows
                                  ? own.slots[work.first_row + at] / args.per_row
                                  : -1;
    }
    for (int step = 0; step < steps; ++step, cursor.advance()) {
      const int slot = cursor.slot;
      Barrier& full = shared.full(slot);
      shared.empty(slot).wait(cursor.parity ^ 1);
      if (brings_weights) {
        full.arrive_expect(Shared::kBBytes);
#pragma unroll
        for (int i = 0; i < kOwnStrips; ++i) {
          const int strip = rank * kOwnStrips + i;
          const int which = Tile::kGated ? strip / 2 : 0;
          char* const to = shared.b(slot) + strip * Tile::kStripBytes;
          const CUtensorMap& map = maps.w[which][work.expert];
          const int column =
              work.column * Tile::kOutColumns + (Tile::kGated ? strip % 2 : strip) * Tile::kStrip;
          if constexpr (Tile::sharing > 1) {
            load_tile_to((1 << Tile::sharing) - 1, to, map, column, step * Tile::kBlock, full);
          } else {
            load_tile(to, map, column, step * Tile::kBlock, full);
          }
        }
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

/// An 8 x 8 matrix of 16-bit elements, of which each lane has two, transposed.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_f16x2(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
/// silu(gate) * up of two elements, each step rounded.
__device__ __forceinline__ uint32_t gate_f16x2(const float* gates, const float* ups) {
  const float2 gate = __half22float2(__floats2half2_rn(gates[0], gates[1]));
  const auto active = __floats2half2_rn(activate_fast(Activation::silu, gate.x),
                                        activate_fast(Activation::silu, gate.y));
  const __half2 pair = __hmul2_rn(active, __floats2half2_rn(ups[0], ups[1]));
  return reinterpret_cast<const uint32_t&>(pair);
}

/// Begins a stage's products, of its first kN rows with both strips of the warpgroup.
template <int kN, class Tile>
__device__ __forceinline__ void begin_strips(float (&sums)[2][Tile::m / 2], uint64_t a, uint64_t b,
                                             bool onto) {
  hold(sums[0]);
  hold(sums[1]);
  wgmma_begin();
#pragma unroll
  for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      // 16 of k are two swizzle patterns of weights; the other strip is two further on.
      const uint32_t offset = i * 2 * kSwizzleBytes + which * 2 * Tile::kStripBytes;
      wgmma_columns<kN>(reinterpret_cast<float(&)[kN / 2]>(sums[which]), advance(a, offset),
                        advance(b, i * kWgmmaRowBytes), onto || i > 0);
    }
  }
  wgmma_commit();
  hold(sums[0]);
  hold(sums[1]);
}
/// The same of so many rows, or a few more. (The choice stands here and not around the loop over k:
/// of several such loops ptxas allocates the sums apart.)
template <class Tile>
__device__ __forceinline__ void begin_rows(int rows, float (&sums)[2][Tile::m / 2], uint64_t a,
                                           uint64_t b, bool onto) {
  if (rows <= 64) {
    begin_strips<64, Tile>(sums, a, b, onto);
  } else if (rows <= 128) {
    begin_strips<128, Tile>(sums, a, b, onto);
  } else if (Tile::m == 144 || rows <= 144) {
    begin_strips<144, Tile>(sums, a, b, onto);
  } else if constexpr (Tile::m > 144) {
    if (rows <= 160) {
      begin_strips<160, Tile>(sums, a, b, onto);
    } else if (rows <= 176) {
      begin_strips<176, Tile>(sums, a, b, onto);
    } else {
      begin_strips<192, Tile>(sums, a, b, onto);
    }
  }
}

/// A warpgroup's part of a tile that has rows.
template <class Tile, class Shared>
__device__ __forceinline__ void multiply_layer(const Shared& shared, const LayerProduct& args,
                                               const LayerWork& work, int warp, int lane,
                                               typename Shared::Cursor& cursor) {
  const int warpgroup = warp / 4;
  const int steps = ceil_div(args.k, Tile::kBlock);
  const uint64_t rows = tile_descriptor(shared.a(0));
  const uint64_t strips =
      transposed_descriptor(shared.b(0) + warpgroup * Tile::kStripBytes, Tile::kStripBytes);
  float sums[2][Tile::m / 2];
  int last_slot = -1;
  for (int step = 0; step < steps; ++step, cursor.advance()) {
    const int slot = cursor.slot;
    shared.full(slot).wait(cursor.parity);
    fence_shared();  // rows came by ordinary copies
    const uint64_t b = advance_steps<Shared::kStageBytes>(rows, slot);
    const uint64_t a = advance_steps<Shared::kStageBytes>(strips, slot);
    begin_rows<Tile>(work.rows, sums, a, b, step > 0);
    wgmma_wait<1>();  // those of the stage before are done: its slot is free
    if (last_slot >= 0) {
      shared.release(last_slot, lane);
    }
    last_slot = slot;
  }
  wgmma_wait<0>();
  hold(sums[0]);
  hold(sums[1]);
  shared.release(last_slot, lane);

  // A lane has two rows of columns lane / 4 and 8 more. Transposed, it has two columns of row lane
  // / 4, of each eight; by turns lanes then have four of the first eight or of the second.
  const OwnSlots own = slots_of(args.drawn, work.expert);
  const bool odd = lane % 2 != 0;
  const int own_column = work.column * Tile::kOutColumns + warpgroup * Tile::kStrip +
                         warp % 4 * 16 + (odd ? 8 : 0) + lane % 4 / 2 * 4;
#pragma unroll
  for (int j = 0; j < Tile::m / 8; ++j) {
    if (j * 8 >= work.rows) {
      break;
    }
    const int row = j * 8 + lane / 4;
    const bool there = row < work.rows;
    const int64_t to = there ? own.slots[work.first_row + row] * args.out.stride : 0;
#pragma unroll
    for (int which = 0; which < (Tile::kGated ? 1 : 2); ++which) {
      uint32_t pairs[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = sums[which] + j * 4 + half * 2;
        pairs[half] = transpose_matrix(Tile::kGated ? gate_f16x2(x, sums[1] + j * 4 + half * 2)
                                                    : pack_f16x2(x[0], x[1]));
      }
      const uint32_t other = __shfl_xor_sync(~0u, odd ? pairs[0] : pairs[1], 1);
      const int column = own_column + which * 2 * Tile::kStrip;
      if (there && column < args.n) {
        *reinterpret_cast<uint2*>(static_cast<uint16_t*>(args.out.data) + to + column) =
            odd ? uint2{other, pairs[1]} : uint2{pairs[0], other};
      }
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    multiply_layer_experts(const __grid_constant__ LayerProduct args,
                           const __grid_constant__ LayerMaps maps) {
  using Shared = LayerShared<Tile>;
  let_next_begin();
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(memory);
  int* const tiles = static_cast<int*>(shared.own());
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = Tile::cluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  shared.prepare(warp, 1 + Tile::kGatherers);
  wait_for_earlier();
  if (warp == 0) {
    count_tiles(args.drawn, Tile::m * Tile::cluster, tiles);
  }
  __syncthreads();
  shared.wait_prepared();

  if (warp >= Tile::warps) {
    lower_registers<Tile::feeder_registers>();
    feed_layer<Tile>(shared, args, maps, tiles, rank);
  } else {
    raise_registers<Tile::registers>();
    const int steps = ceil_div(args.k, Tile::kBlock);
    typename Shared::Cursor cursor;
    LayerWork work;
    for (int round = 0; layer_work<Tile>(args, tiles, rank, round, work); ++round) {
      if (work.rows == 0) {
        for (int step = 0; step < steps; ++step, cursor.advance()) {
          shared.full(cursor.slot).wait(cursor.parity);
          shared.release(cursor.slot, lane);
        }
      } else {
        multiply_layer<Tile>(shared, args, work, warp, lane, cursor);
      }
    }
  }
  __syncwarp();
  leave_cluster<Tile>();
}

/// Starts it; `w` are the matrices [k, n] of all experts. Errors: device.
template <class Tile>
Status launch_layer_experts(const LayerProduct& args,
                            std::initializer_list<const std::vector<ConstMatrix>*> w,
                            Stream stream) {
  LayerMaps maps;
  CUtensorMap* to = maps.w[0];
  for (const std::vector<ConstMatrix>* all : w) {
    for (size_t e = 0; e < all->size(); ++e) {
      // Any 16 bits are alike to the copy engine.
      WEFT_ASSIGN(to[e], tensor_map({.data = (*all)[e].data,
                                     .format = MapFormat::bf16,
                                     .rows = args.k,
                                     .columns = args.n,
                                     .stride_bytes = (*all)[e].stride * Tile::kBytes,
                                     .box_rows = Tile::kBlock,
                                     .box_columns = Tile::kStrip}));
    }
    to = maps.w[1];
  }
  return launch_kernel(multiply_layer_experts<Tile>,
                       {.blocks = stream.device->info().units / Tile::cluster * Tile::cluster,
                        .threads = Tile::threads,
                        .cluster = Tile::cluster,
                        .shared_bytes = LayerShared<Tile>::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, maps);
}

}  // namespace weft::hopper
