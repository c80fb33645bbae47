// The product of bf16 matrices on sm_90a, for many rows. Tiles: arch/hopper/gemm.cuh.
#pragma once

#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"

namespace weft::hopper {

inline constexpr int kBf16Block = kRowBytes / Bf16::kBytes;  ///< elements of k in a stage

/// Where f32 results go; bf16 ones go through a tensor map.
struct F32Out {
  float* data = nullptr;  ///< [m, n], or null: bf16
  int64_t stride = 0;
  int m = 0;
  int n = 0;
  bool accumulate = false;  ///< add to what it holds
};

/// Columns that a warp stages at a time.
template <class Tile>
inline constexpr int kStagedColumns = Tile::n > 192 ? Tile::n / 2 : Tile::n;
template <class Tile>
using Bf16Shared = GemmShared<Tile, 0, staging_bytes<kStagedColumns<Tile>>()>;

/// Adds or stores a thread's part of a warp's 16 rows: quads of lanes write 32 bytes of a row. What
/// is added to is asked for all at once, or the memory's latency would show again and again.
template <int kN>
__device__ void store_f32(const F32Out& out, int row, int column, const float (&sums)[kN / 2],
                          int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + 8 * half;
    if (r < out.m) {
      float* to = out.data + r * out.stride + column + lane % 4 * 2;
      float2 values[kN / 8] = {};
      if (out.accumulate) {
#pragma unroll
        for (int i = 0; i < kN / 8; ++i) {
          if (column + 8 * i < out.n) {
            values[i] = *reinterpret_cast<const float2*>(to + 8 * i);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) {
        if (column + 8 * i < out.n) {
          values[i].x += sums[4 * i + 2 * half];
          values[i].y += sums[4 * i + 2 * half + 1];
          *reinterpret_cast<float2*>(to + 8 * i) = values[i];
        }
      }
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    gemm_bf16_tile(const __grid_constant__ RowBoxes a, const __grid_constant__ RowBoxes b,
                   const __grid_constant__ CUtensorMap out,
                   const __grid_constant__ TileSchedule schedule,
                   const __grid_constant__ F32Out out_f32, bool constant_b) {
  static_assert(Tile::row_tiles == 1, "a warpgroup holds the sums of 64 rows");
  let_next_begin();
  using Shared = Bf16Shared<Tile>;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (warp == Tile::warps && elect_one()) {
    prefetch_maps<Tile::a_rows>(a);
    prefetch_maps<Tile::b_rows>(b);
  }
  shared.prepare(warp, 2);
  const TileWork first = first_work<Tile>(schedule, warp);
  shared.wait_prepared();
  if (!(constant_b && warp == kFeederOfB<Tile>)) {
    wait_for_earlier();
  }
  const int cluster_index = blockIdx.x / Tile::cluster;

  if (warp >= Tile::warps) {
    lower_registers<Tile::feeder_registers>();
    if (warp == Tile::warps) {
      feed_tiles<Tile, Feed::own>(shared, schedule, first, operand_of<Tile, Feed::own>(a, b),
                                  kBf16Block);
    } else if (warp == Tile::warps + 1) {
      feed_tiles<Tile, Feed::common>(shared, schedule, first, operand_of<Tile, Feed::common>(a, b),
                                     kBf16Block);
    }
    attend_gathering<Tile>();
  } else {
    raise_registers<Tile::registers>();
    const int warpgroup = warp / 4;
    const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
    typename Shared::Cursor cursor;
    TileWork work;
    for (int round = 0; schedule.work(cluster_index, round, rank, work); ++round) {
      float sums[Tile::n / 2];
      multiply_bf16<Tile>(shared, work, warpgroup * 64, lane, cursor, sums);
      if (gather_parts<Tile>(shared, work, sums, warp, lane)) {
        const int row = work.m * Tile::m + warpgroup * 64 + warp % 4 * 16;
        const int column = work.n * Tile::n;
        if (out_f32.data != nullptr) {
          store_f32<Tile::n>(out_f32, row, column, sums, lane);
        } else {
          constexpr int kColumns = kStagedColumns<Tile>;
#pragma unroll
          for (int i = 0; i < Tile::n / kColumns; ++i) {
            store_rows<kColumns>(
                shared.staging(warp), out, row, column + i * kColumns,
                reinterpret_cast<const float(&)[kColumns / 2]>(sums[i * kColumns / 2]), lane);
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
