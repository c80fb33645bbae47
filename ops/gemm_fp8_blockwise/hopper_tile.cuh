// The block-scaled product on sm_90a. The tensor cores sum 128 elements of k in registers (their sums
// of fp8 products keep fewer bits than f32), and each such part is scaled and added to f32 totals by
// the ordinary pipelines while another warpgroup's products run. Tiles: arch/hopper/gemm.cuh.
#pragma once

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
  int n_blocks = 0;  ///< ceil(n / 128)
};

/// Beside each stage: a scale for each row of the tile and the (at most two) of its columns.
template <class Tile>
using Fp8Shared =
    GemmShared<Tile, ceil_div((Tile::m + 2) * 4, 128) * 128, staging_bytes<Tile::n>()>;

/// The feeder of scales: one warp.
template <class Tile>
__device__ void feed_scales(const Fp8Shared<Tile>& shared, const TileSchedule& schedule,
                            const BlockScales& scales, int lane) {
  const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
  typename Fp8Shared<Tile>::Cursor cursor;
  TileWork work;
  for (int round = 0; schedule.work(blockIdx.x / Tile::cluster, round, rank, work); ++round) {
    const int row = work.m * Tile::m + lane;
    const int n_block = work.n * Tile::n / kFp8Block + lane;
    const float* a = scales.a + row * scales.a_row + work.k_begin * scales.a_block;
    const float* b = scales.b + n_block * scales.b_row + work.k_begin * scales.b_block;
    for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance()) {
      shared.empty(cursor.slot).wait(cursor.parity ^ 1);
      auto* to = reinterpret_cast<float*>(shared.beside(cursor.slot));
      static_assert(Tile::m % 32 == 0);
      const float* from = a;
#pragma unroll
      for (int i = 0; i < Tile::m; i += 32, from += 32 * scales.a_row) {
        const bool inside = row + i < scales.m;
        copy_async_4(to + lane + i, inside ? from : scales.a, inside);
      }
      if (lane < 2) {
        const bool inside = n_block < scales.n_blocks;
        copy_async_4(to + Tile::m + lane, inside ? b : scales.b, inside);
      }
      shared.full(cursor.slot).arrive_after_copies();
      a += scales.a_block;
      b += scales.b_block;
    }
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    gemm_fp8_blockwise_tile(const __grid_constant__ CUtensorMap a,
                            const __grid_constant__ CUtensorMap b,
                            const __grid_constant__ CUtensorMap out,
                            const __grid_constant__ TileSchedule schedule,
                            const __grid_constant__ BlockScales scales) {
  extern __shared__ char memory[];
  const Fp8Shared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  shared.init(1 + 32);  // the feeder of tiles, and the feeder of scales' lanes
  const int cluster_index = blockIdx.x / Tile::cluster;

  constexpr int kSums = Tile::n / 2;
  constexpr int kRowTiles = Tile::row_tiles;
  // Of the 65536 registers, what the feeders leave.
  constexpr int kFeederRegisters = Tile::warpgroups == 3 ? 32 : 40;
  constexpr int kRegisters = Tile::warpgroups == 3 ? 160 : 232;
  if (warp >= Tile::warps) {
    lower_registers<kFeederRegisters>();
    if (warp == Tile::warps) {
      if (elect_one()) {
        prefetch_map(a);
        prefetch_map(b);
        feed_tiles<Tile>(shared, schedule, a, b, kFp8Block);
      }
      __syncwarp();
    } else if (warp == Tile::warps + 1) {
      feed_scales<Tile>(shared, schedule, scales, lane);
    }
    if (ends_split(schedule, cluster_index)) {
      cluster_sync();
      cluster_sync();
    }
  } else {
    raise_registers<kRegisters>();
    const int warpgroup = warp / 4;
    const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
    // Of each 64 rows this thread holds sums of row `row` and of row + 8.
    const int first_row = warpgroup * kRowTiles * 64;
    const int row = first_row + warp % 4 * 16 + lane / 4;
    const uint64_t a_tile = advance(tile_descriptor(shared.a(0)), first_row * kRowBytes);
    const uint64_t b_tile = tile_descriptor(shared.b(0));
    typename Fp8Shared<Tile>::Cursor cursor;
    TileWork work;
    for (int round = 0; schedule.work(cluster_index, round, rank, work); ++round) {
      float totals[kRowTiles * kSums] = {};
      // The tile's columns below this have the first of the two scales of b.
      const int border = kFp8Block - work.n * Tile::n % kFp8Block;
      for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance()) {
        const int slot = cursor.slot;
        const auto* stage_scales = reinterpret_cast<const float*>(shared.beside(slot));
        shared.full(slot).wait(cursor.parity);
        const float b_scale[2] = {stage_scales[Tile::m], stage_scales[Tile::m + 1]};
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          const float a_scale[2] = {stage_scales[row + 64 * tile], stage_scales[row + 64 * tile + 8]};
          float part[kSums];
          hold(part);
          wgmma_begin();
#pragma unroll
          for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
            wgmma<E4m3, Tile::n>(part,
                                 advance(a_tile, slot * Fp8Shared<Tile>::kStageBytes +
                                                     tile * 64 * kRowBytes + i * kWgmmaRowBytes),
                                 advance(b_tile, slot * Fp8Shared<Tile>::kStageBytes +
                                                     i * kWgmmaRowBytes),
                                 i > 0);
          }
          wgmma_commit();
          hold(part);
          wgmma_wait<0>();
          if (tile == kRowTiles - 1) {
            shared.release(slot, lane);
          }
          const float upper[2] = {a_scale[0] * b_scale[0], a_scale[0] * b_scale[1]};
          const float lower[2] = {a_scale[1] * b_scale[0], a_scale[1] * b_scale[1]};
#pragma unroll
          for (int i = 0; i < kSums; i += 4) {
            // Tiles of whole blocks of b never see the second scale. Selected by value: an index
            // would put the scales into local memory.
            const bool first = kFp8Block % Tile::n == 0 || i * 2 < border;
            const float up = first ? upper[0] : upper[1];
            const float low = first ? lower[0] : lower[1];
            float* total = totals + tile * kSums + i;
            total[0] += up * part[i];
            total[1] += up * part[i + 1];
            total[2] += low * part[i + 2];
            total[3] += low * part[i + 3];
          }
        }
      }
      bool mine = true;
      if constexpr (Tile::cluster > 1) {
        if (work.split > 1) {
          mine = gather_parts<Tile>(shared, work, totals, warp, lane);
        }
      }
      if (mine) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          store_rows<Tile::n>(
              shared.staging(warp), out, work.m * Tile::m + first_row + 64 * tile + warp % 4 * 16,
              work.n * Tile::n,
              reinterpret_cast<const float(&)[kSums]>(totals[tile * kSums]), lane);
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
