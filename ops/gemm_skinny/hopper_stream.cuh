// The product of few rows on sm_90a, which is bound by reading b: blocks stream groups of b's rows
// through a deep ring in shared memory (hopper_plan.h says which). The tensor cores compute the
// transposed product, b's rows on their wide side. Where the blocks of a cluster share a group,
// each adds up a slice of the sums, which the others store into its shared memory.
#pragma once

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/wgmma.cuh"
#include "ops/gemm_skinny/hopper_plan.h"

namespace weft::hopper {

/// Scales of fp8 operands, in elements; a stride is 0 where they are shared.
struct SkinnyScales {
  const float* a = nullptr;
  int64_t a_row = 0;
  int64_t a_block = 0;
  const float* b = nullptr;
  int64_t b_row = 0;
  int64_t b_block = 0;
  bool blocks = false;  ///< one for 128 elements of k; b's for 128 of its rows too
};

struct SkinnyOut {
  void* data = nullptr;  ///< [m, n]
  int64_t stride = 0;
  bool f32 = false;  ///< else bf16
  int m = 0;
  int n = 0;
};

/// Stages of constant b that a block asks for ahead, before the kernel before is complete. More
/// stand before rows of a in the copy engine's line, its own or those of that kernel's blocks.
inline constexpr int kEarlyStages = 2;

/// How the kernel meets its neighbours in the stream (arch/hopper/dependent.cuh).
struct SkinnyOverlap {
  bool constant_b = false;  ///< b may be read at once: kEarlyStages of it are
  /// The next kernel's blocks come when all of b is asked for, not before. They would take the
  /// places that are free first, several on one multiprocessor and none on another: where each has
  /// much to read, that costs more than their late start.
  bool late = false;
};

/// kM: rows of a, padded: 16 or 32. kRows: rows of b per unit, 64 for each warpgroup. kRowsBytes of
/// k are kChunks * kRowBytes.
template <class FormatType, int kMValue, int kRowsValue, int kChunksValue>
struct SkinnyTile {
  using Format = FormatType;
  static constexpr int kM = kMValue;
  static constexpr int kRows = kRowsValue;
  static constexpr int kChunks = kChunksValue;
  static constexpr int kWarpgroups = kRows / 64;
  static constexpr int kThreads = kWarpgroups * 128 + 64;
  static constexpr int kBBytes = kRows * kRowBytes;  // of a chunk
  static constexpr int kABytes = kM * kRowBytes;
  static constexpr int kStageBytes = kChunks * (kABytes + kBBytes);
  static constexpr int kElements = kRowBytes / Format::kBytes;  // of k in a chunk
  static constexpr int kSums = kM / 2;                          // of a thread
  static constexpr int kExchanged = kSums * kWarpgroups * 128;  // sums from others at once, at most
  static constexpr int kExchangeBytes = 2 * (kExchanged * 4 + 8);
  static constexpr int kFit = (232448 - 1024 - 256 - kExchangeBytes) / kStageBytes;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBytes = 1024 + kStages * (kStageBytes + 16) + kExchangeBytes;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    gemm_skinny_stream(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const __grid_constant__ SkinnyShares shares,
                       const __grid_constant__ SkinnyScales scales,
                       const __grid_constant__ SkinnyOut out, SkinnyOverlap overlap) {
  using Format = typename Tile::Format;
  constexpr bool kFp8 = Format::kBytes == 1;
  if (!overlap.late) {
    let_next_begin();
  }
  extern __shared__ __align__(1024) char memory[];
  char* base = memory + (1024 - smem_address(memory) % 1024) % 1024;
  auto* full = reinterpret_cast<Barrier*>(base + Tile::kStages * Tile::kStageBytes);
  Barrier* empty = full + Tile::kStages;
  Barrier* gathered = empty + Tile::kStages;  // [2]
  auto* parts = reinterpret_cast<float*>(gathered + 2);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  constexpr int kWarps = Tile::kWarpgroups * 4;
  constexpr int kSumsShift = Tile::kSums == 8 ? 3 : 4;
  static_assert(Tile::kSums == 1 << kSumsShift);
  RingCursor<Tile::kStages> cursor;
  const int rank = shares.cluster > 1 ? cluster_rank() : 0;
  const int cluster_index = blockIdx.x >> shares.cluster_shift();
  const auto chunk_b = [&](int slot, int chunk) {
    return base + slot * Tile::kStageBytes + chunk * Tile::kBBytes;
  };
  const auto chunk_a = [&](int slot, int chunk) {
    return base + slot * Tile::kStageBytes + Tile::kChunks * Tile::kBBytes + chunk * Tile::kABytes;
  };

  if (warp == kWarps && elect_one()) {
    prefetch_map(b);
    prefetch_map(a);
    for (int slot = 0; slot < Tile::kStages; ++slot) {
      full[slot].init(2);
      empty[slot].init(kWarps);
    }
    gathered[0].init(1);
    gathered[1].init(1);
    fence_barriers();
  }
  __syncthreads();

  if (warp >= kWarps) {
    // A feeder for each operand: b's loads go ahead where a's have to wait.
    const bool of_b = warp == kWarps;
    const bool chosen = elect_one();
    if (shares.cluster > 1) {
      cluster_arrive();
    }
    const uint64_t once = evict_first();
    SkinnyRun run;
    if (!of_b && chosen && shares.run(cluster_index, rank, 0, run)) {  // a part of a each
      const int stage = run.begin + cluster_index % max(1, run.end - run.begin);
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        prefetch_tile(a, (stage * Tile::kChunks + chunk) * Tile::kElements, 0);
      }
    }
    int ahead = of_b && overlap.constant_b ? kEarlyStages : 0;
    for (int index = 0; shares.run(cluster_index, rank, index, run); ++index) {
      for (int stage = run.begin; stage < run.end; ++stage, cursor.advance()) {
        const int slot = cursor.slot;
        if (ahead-- == 0) {
          wait_for_earlier();
        }
        empty[slot].wait(cursor.parity ^ 1);
        if (chosen) {
          full[slot].arrive_expect(Tile::kChunks * (of_b ? Tile::kBBytes : Tile::kABytes));
#pragma unroll
          for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
            const int k = (stage * Tile::kChunks + chunk) * Tile::kElements;
            if (of_b) {
              load_tile(chunk_b(slot, chunk), b, k, run.group * Tile::kRows, full[slot], once);
            } else {
              load_tile(chunk_a(slot, chunk), a, k, 0, full[slot]);
            }
          }
        }
      }
    }
    if (of_b && overlap.late) {
      let_next_begin();
    }
    if (shares.cluster > 1) {
      cluster_wait();
      cluster_sync_relaxed();
    }
    return;
  }
  wait_for_earlier();
  if (shares.cluster > 1) {
    cluster_arrive();  // see cluster_wait() below
  }

  const int warpgroup = warp / 4;
  // This thread's sums: of rows `row` and row + 8 of the unit's rows of b, and of a's rows
  // 8 i + first_m + {0, 1}; see accumulator_coordinate().
  const int row = warp * 16 + lane / 4;
  const int first_m = lane % 4 * 2;
  const uint64_t first_rows = tile_descriptor(chunk_b(0, 0) + warpgroup * 64 * kRowBytes);
  const uint64_t first_columns = tile_descriptor(chunk_a(0, 0));
  const auto m_of = [&](int i) { return i / 4 * 8 + first_m + i % 2; };
  SkinnyRun run;
  for (int index = 0; shares.run(cluster_index, rank, index, run); ++index) {
    const int first_n = run.group * Tile::kRows;
    float sums[Tile::kSums] = {};
    // fp8: scales, where they are of blocks that of the next one; a's rows in pairs as the sums
    // are.
    float a_next[Tile::kSums / 2];
    float b_next = 1;
    const bool by_block = kFp8 && scales.blocks;
    const auto load_scales = [&](int k_block) {
      // Past the end of k both operands are zeros: a scale of zero keeps an infinite one out of
      // them.
      const bool inside = k_block < shares.k_blocks;
      b_next = inside ? scales.b[first_n / 128 * scales.b_row + k_block * scales.b_block] : 0;
#pragma unroll
      for (int i = 0; i < Tile::kSums / 2; ++i) {
        const int m = m_of(i / 2 * 4 + i % 2);
        a_next[i] = inside && m < out.m ? scales.a[m * scales.a_row + k_block * scales.a_block] : 0;
      }
    };
    // Other scales are asked for now too: at the end their way from memory would show.
    float b_rows[2] = {1, 1};
    if (by_block) {
      load_scales(run.begin * Tile::kChunks);
    } else if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < Tile::kSums / 2; ++i) {
        a_next[i] = scales.a[min(m_of(i / 2 * 4 + i % 2), out.m - 1) * scales.a_row];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        b_rows[half] = scales.b[min(first_n + row + 8 * half, out.n - 1) * scales.b_row];
      }
    }
    for (int stage = run.begin; stage < run.end; ++stage, cursor.advance()) {
      const int slot = cursor.slot;
      const uint64_t stage_rows = advance_steps<Tile::kStageBytes>(first_rows, slot);
      const uint64_t stage_columns = advance_steps<Tile::kStageBytes>(first_columns, slot);
      full[slot].wait(cursor.parity);
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        const uint64_t rows = advance(stage_rows, chunk * Tile::kBBytes);
        const uint64_t columns = advance(stage_columns, chunk * Tile::kABytes);
        if constexpr (kFp8) {
          // Sums of 128 products in the tensor cores, which keep fewer bits than f32.
          float part[Tile::kSums];
          begin_row_products<Format>(part, rows, columns, false);
          float scale[Tile::kSums / 2];
          if (by_block) {
#pragma unroll
            for (int i = 0; i < Tile::kSums / 2; ++i) {
              scale[i] = a_next[i] * b_next;
            }
            load_scales(stage * Tile::kChunks + chunk + 1);
          }
          hold(part);
          wgmma_wait<0>();
          hold(part);
#pragma unroll
          for (int i = 0; i < Tile::kSums; ++i) {
            sums[i] += by_block ? part[i] * scale[i / 4 * 2 + i % 2] : part[i];
          }
        } else {
          begin_row_products<Format>(sums, rows, columns, true);
        }
      }
      if constexpr (!kFp8) {
        wgmma_wait<0>();
        hold(sums);
      }
      if (lane == 0) {
        empty[slot].arrive();
      }
    }

    // A thread's sums are cut into slices, one for each block of the cluster, which adds up all
    // blocks' in the order of their ranks. Two sets of places, in turn: who writes into one again
    // has all sums of the group between, so the others have read it.
    const int slice_shift = kSumsShift - shares.cluster_shift();
    const int slice = 1 << slice_shift;
    if (shares.cluster > 1) {
      constexpr int kThreads = kWarps * 32;
      const int turn = index % 2;
      if (index == 0) {
        cluster_wait();  // all blocks run and have prepared their barriers
      }
      const auto place = [&](int from, int to, int i) {
        const int source = from < to ? from : from - 1;
        return parts + turn * Tile::kExchanged + (source * slice + (i & (slice - 1))) * kThreads +
               static_cast<int>(threadIdx.x);
      };
      if (threadIdx.x == 0) {
        gathered[turn].arrive_expect((shares.cluster - 1) * slice * kThreads * 4);
      }
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) {
        if (const int to = i >> slice_shift; to != rank) {
          store_remote(cluster_address(smem_address(place(rank, to, i)), to), sums[i],
                       cluster_address(smem_address(gathered + turn), to));
        }
      }
      gathered[turn].wait(index / 2 % 2);
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) {
        if (i >> slice_shift == rank) {
          float sum = 0;
          for (int from = 0; from < shares.cluster; ++from) {
            sum += from == rank ? sums[i] : *place(from, rank, i);
          }
          sums[i] = sum;
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = first_n + row + 8 * half;
      if (n < out.n) {
#pragma unroll
        for (int i = 0; i < Tile::kSums / 2; ++i) {
          const int m = m_of(i / 2 * 4 + i % 2);
          const int sum = i / 2 * 4 + half * 2 + i % 2;
          if (m < out.m && sum >> slice_shift == rank) {
            float value = sums[sum];
            if (kFp8 && !by_block) {
              value *= a_next[i] * b_rows[half];
            }
            const int64_t at = m * out.stride + n;
            if (out.f32) {
              static_cast<float*>(out.data)[at] = value;
            } else {
              static_cast<uint16_t*>(out.data)[at] = static_cast<uint16_t>(pack_bf16x2(value, 0));
            }
          }
        }
      }
    }
  }
  if (shares.cluster > 1) {
    cluster_sync_relaxed();  // nobody leaves before all that it sent has arrived
  }
}

}  // namespace weft::hopper
