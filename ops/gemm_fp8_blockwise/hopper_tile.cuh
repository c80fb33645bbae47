// The block-scaled product on sm_90a. The tensor cores sum 128 elements of k in registers (their
// sums of fp8 products keep fewer bits than f32), and each such part is scaled and added to f32
// totals by the ordinary pipelines while another warpgroup's products run. Tiles:
// arch/hopper/gemm.cuh.
#pragma once

#include <numeric>

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
  int n_blocks = 0;   ///< ceil(n / 128)
  bool bulk = false;  ///< the copy engine can take a's scales of one block of k: see bulk_scales()
};
/// Whether the scales of a that a tile needs lie together, in whole 16 bytes.
inline bool bulk_scales(const BlockScales& scales) {
  return scales.a_row == 1 && scales.a_block % 4 == 0 && scales.m % 4 == 0 &&
         reinterpret_cast<uintptr_t>(scales.a) % 16 == 0;
}

/// Beside each stage: a scale for each row of the tile and the (at most two) of its columns.
template <class Tile>
using Fp8Shared =
    GemmShared<Tile, ceil_div((Tile::m + 2) * 4, 128) * 128, staging_bytes<Tile::n>()>;

/// Arrivals that feed_scales() makes at a full barrier.
__device__ inline int scale_arrivals(const BlockScales& scales) { return scales.bulk ? 1 : 33; }

/// A lane's scales of b: of one of 32 blocks of k, for the tile's first 128 columns and the next.
struct ScalePair {
  float first = 0;
  float second = 0;
};

/// The feeder of scales: one warp.
template <class Tile>
__device__ void feed_scales(const Fp8Shared<Tile>& shared, const TileSchedule& schedule,
                            const BlockScales& scales, int lane) {
  const int cluster_index = blockIdx.x / Tile::cluster;
  const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
  const auto load_b = [&](const TileWork& work, int k) {
    ScalePair pair;
    const int block = work.n * Tile::n / kFp8Block;
    if (k + lane < work.k_end) {
      const float* b = scales.b + block * scales.b_row + (k + lane) * scales.b_block;
      pair.first = block < scales.n_blocks ? *b : 0;
      pair.second = block + 1 < scales.n_blocks ? b[scales.b_row] : 0;
    }
    return pair;
  };
  typename Fp8Shared<Tile>::Cursor cursor;
  TileWork work;
  TileWork next;
  bool more = schedule.work(cluster_index, 0, rank, work);
  ScalePair later = more ? load_b(work, work.k_begin) : ScalePair{};
  for (int round = 0; more; work = next) {
    more = schedule.work(cluster_index, ++round, rank, next);
    const int row = work.m * Tile::m;
    const float* a = scales.a + row + work.k_begin * scales.a_block;
    ScalePair now;
    for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance(), a += scales.a_block) {
      const int in_32 = (k - work.k_begin) % 32;
      if (in_32 == 0) {
        now = later;  // and the next 32 are on their way, of this tile or of the next
        if (k + 32 < work.k_end) {
          later = load_b(work, k + 32);
        } else if (more) {
          later = load_b(next, next.k_begin);
        }
      }
      const float first = __shfl_sync(~0u, now.first, in_32);
      const float second = __shfl_sync(~0u, now.second, in_32);
      shared.empty(cursor.slot).wait(cursor.parity ^ 1);
      auto* to = reinterpret_cast<float*>(shared.beside(cursor.slot));
      Barrier& full = shared.full(cursor.slot);
      if (lane == 0) {
        to[Tile::m] = first;
        to[Tile::m + 1] = second;
      }
      if (scales.bulk) {
        if (lane == 0) {
          const int rows = min(Tile::m, scales.m - row);
          full.arrive_expect(rows > 0 ? rows * 4 : 0);
          if (rows > 0) {
            load_bytes(to, a, rows * 4, full);
          }
        }
      } else {
        for (int i = lane; i < Tile::m; i += 32) {
          const bool inside = row + i < scales.m;
          copy_async_4(to + i, inside ? a + (row + i) * scales.a_row - row : scales.a, inside);
        }
        full.arrive_after_copies();
        if (lane == 0) {
          full.arrive();  // releases b's scales
        }
      }
    }
  }
}

/// A thread's scales of a stage: of row `row` of the tile and of row + 8, of columns 0 and 128.
template <class Tile>
struct StageScales {
  __device__ StageScales(const char* beside, int row) {
    const auto* scales = reinterpret_cast<const float*>(beside);
    const float b0 = scales[Tile::m];
    const float a0 = scales[row];
    const float a1 = scales[row + 8];
    upper = a0 * b0;
    lower = a1 * b0;
    if constexpr (kFp8Block % Tile::n != 0) {
      const float b1 = scales[Tile::m + 1];
      upper_next = a0 * b1;
      lower_next = a1 * b1;
    }
  }
  float upper;
  float lower;
  float upper_next;
  float lower_next;
};

/// totals += scale * part. Columns from the border on have the second scale of b: kBorder, or
/// `border` where that is 0. Scales are selected by value; an index would put them into local
/// memory.
template <class Tile, int kBorder>
__device__ void add_scaled(float (&totals)[Tile::n / 2], const float (&part)[Tile::n / 2],
                           const StageScales<Tile>& scale, int border) {
#pragma unroll
  for (int i = 0; i < Tile::n / 2; i += 4) {
    const bool first = i * 2 < (kBorder > 0 ? kBorder : border);
    const float upper = first ? scale.upper : scale.upper_next;
    const float lower = first ? scale.lower : scale.lower_next;
    totals[i] += upper * part[i];
    totals[i + 1] += upper * part[i + 1];
    totals[i + 2] += lower * part[i + 2];
    totals[i + 3] += lower * part[i + 3];
  }
}

/// Where borders can lie in a tile: at multiples of this, up to kLastBorder.
template <class Tile>
inline constexpr int kBorderStep = std::gcd(Tile::n, kFp8Block);
template <class Tile>
inline constexpr int kLastBorder = Tile::n < kFp8Block ? Tile::n : kFp8Block;

/// Calls body.operator()<border>(), so that the selects of add_scaled() are made by the compiler,
/// which halves the work between products; or with 0 where there are too many borders for a copy of
/// each.
template <class Tile, int kBorder = kBorderStep<Tile>, class Body>
__device__ void with_border(int border, const Body& body) {
  if constexpr (kFp8Block / kBorderStep < Tile >> 4) {
    body.template operator()<0>();
  } else if constexpr (kBorder == kLastBorder<Tile>) {
    body.template operator()<kBorder>();
  } else if (border == kBorder) {
    body.template operator()<kBorder>();
  } else {
    with_border<Tile, kBorder + kBorderStep<Tile>>(border, body);
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::threads, 1)
    gemm_fp8_blockwise_tile(const __grid_constant__ CUtensorMap a,
                            const __grid_constant__ CUtensorMap b,
                            const __grid_constant__ CUtensorMap out,
                            const __grid_constant__ TileSchedule schedule,
                            const __grid_constant__ BlockScales scales) {
  using Shared = Fp8Shared<Tile>;
  extern __shared__ char memory[];
  const Shared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  shared.init(1 + scale_arrivals(scales));
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
    attend_gathering(schedule, cluster_index);
  } else {
    raise_registers<kRegisters>();
    const int warpgroup = warp / 4;
    const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
    // Of each 64 rows this thread holds sums of row `row` and of row + 8.
    const int first_row = warpgroup * kRowTiles * 64;
    const int row = first_row + warp % 4 * 16 + lane / 4;
    const uint64_t a_tile = advance(tile_descriptor(shared.a(0)), first_row * kRowBytes);
    const uint64_t b_tile = tile_descriptor(shared.b(0));
    typename Shared::Cursor cursor;
    TileWork work;
    for (int round = 0; schedule.work(cluster_index, round, rank, work); ++round) {
      float totals[kRowTiles * kSums] = {};
      // The tile's columns below this have the first of the two scales of b.
      const int border = kFp8Block - work.n * Tile::n % kFp8Block;
      with_border<Tile>(border, [&]<int kBorder>() {
        for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance()) {
          const int slot = cursor.slot;
          shared.full(slot).wait(cursor.parity);
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile) {
            float part[kSums];
            hold(part);
            wgmma_begin();
#pragma unroll
            for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
              const uint32_t offset = slot * Shared::kStageBytes + i * kWgmmaRowBytes;
              wgmma<E4m3, Tile::n>(part, advance(a_tile, offset + tile * 64 * kRowBytes),
                                   advance(b_tile, offset), i > 0);
            }
            wgmma_commit();
            const StageScales<Tile> scale(shared.beside(slot), row + 64 * tile);
            hold(part);
            wgmma_wait<0>();
            hold(part);
            if (tile == kRowTiles - 1) {
              shared.release(slot, lane);
            }
            add_scaled<Tile, kBorder>(reinterpret_cast<float(&)[kSums]>(totals[tile * kSums]), part,
                                      scale, border);
          }
        }
      });
      bool mine = true;
      if constexpr (Tile::cluster > 1) {
        if (work.split > 1) {
          mine = gather_parts<Tile>(shared, work, totals, warp, lane);
        }
      }
      if (mine) {
#pragma unroll
        for (int tile = 0; tile < kRowTiles; ++tile) {
          store_rows<Tile::n>(shared.staging(warp), out,
                              work.m * Tile::m + first_row + 64 * tile + warp % 4 * 16,
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
