// The product of few rows on sm_90a, which is bound by reading b: blocks stream groups of b's rows
// through a deep ring in shared memory (hopper_plan.h says which). The tensor cores compute the
// transposed product, b's rows on their wide side. Where blocks share a group, its sums are put
// together through device memory by the block that comes last, in a fixed order.
#pragma once

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
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

/// kM: rows of a, padded: 16 or 32. kRows: rows of b per unit, 64 for each warpgroup. kRowsBytes of
/// k are kChunks * kRowBytes.
template <class FormatType, int kMValue, int kRowsValue, int kChunksValue>
struct SkinnyTile {
  using Format = FormatType;
  static constexpr int kM = kMValue;
  static constexpr int kRows = kRowsValue;
  static constexpr int kChunks = kChunksValue;
  static constexpr int kWarpgroups = kRows / 64;
  static constexpr int kThreads = kWarpgroups * 128 + 32;
  static constexpr int kBBytes = kRows * kRowBytes;  // of a chunk
  static constexpr int kABytes = kM * kRowBytes;
  static constexpr int kStageBytes = kChunks * (kABytes + kBBytes);
  static constexpr int kFit = (232448 - 1024 - 256) / kStageBytes;
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBytes = 1024 + kStages * (kStageBytes + 16) + 16;
  static constexpr int kElements = kRowBytes / Format::kBytes;  // of k in a chunk
  static constexpr int kSums = kM / 2;                          // of a thread
  static_assert(kSums * kWarpgroups * 128 * 4 == kRows * kM * 4);
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    gemm_skinny_stream(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const __grid_constant__ SkinnyShares shares,
                       const __grid_constant__ SkinnyScales scales,
                       const __grid_constant__ SkinnyOut out, unsigned* counters, float* partials) {
  using Format = typename Tile::Format;
  constexpr bool kFp8 = Format::kBytes == 1;
  extern __shared__ char memory[];
  char* base = memory + (1024 - smem_address(memory) % 1024) % 1024;
  auto* full = reinterpret_cast<Barrier*>(base + Tile::kStages * Tile::kStageBytes);
  Barrier* empty = full + Tile::kStages;
  auto* is_last = reinterpret_cast<int*>(empty + Tile::kStages);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  constexpr int kWarps = Tile::kWarpgroups * 4;
  RingCursor<Tile::kStages> cursor;
  const int block = blockIdx.x;
  const auto chunk_b = [&](int slot, int chunk) {
    return base + slot * Tile::kStageBytes + chunk * Tile::kBBytes;
  };
  const auto chunk_a = [&](int slot, int chunk) {
    return base + slot * Tile::kStageBytes + Tile::kChunks * Tile::kBBytes + chunk * Tile::kABytes;
  };

  if (warp == kWarps) {
    if (elect_one()) {
      prefetch_map(b);
      prefetch_map(a);
      for (int slot = 0; slot < Tile::kStages; ++slot) {
        full[slot].init(1);
        empty[slot].init(kWarps);
      }
      fence_barriers();
    }
    __syncwarp();
    named_arrive(2, Tile::kThreads);  // the others wait for the barriers; the first loads go ahead
    if (elect_one()) {
      const uint64_t once = evict_first();
      SkinnyRun run;
      for (int index = 0; shares.run(block, index, run); ++index) {
        for (int stage = run.begin; stage < run.end; ++stage, cursor.advance()) {
          const int k = stage * Tile::kChunks * Tile::kElements;
          empty[cursor.slot].wait(cursor.parity ^ 1);
          full[cursor.slot].arrive_expect(Tile::kStageBytes);
#pragma unroll
          for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
            load_tile(chunk_b(cursor.slot, chunk), b, k + chunk * Tile::kElements,
                      run.group * Tile::kRows, full[cursor.slot], once);
            load_tile(chunk_a(cursor.slot, chunk), a, k + chunk * Tile::kElements, 0,
                      full[cursor.slot]);
          }
        }
      }
    }
    return;
  }
  named_sync(2, Tile::kThreads);

  const int warpgroup = warp / 4;
  // This thread's sums: of rows `row` and row + 8 of the unit's rows of b, and of a's rows
  // 8 i + first_m + {0, 1}; see accumulator_coordinate().
  const int row = warp * 16 + lane / 4;
  const int first_m = lane % 4 * 2;
  const auto m_of = [&](int i) { return i / 4 * 8 + first_m + i % 2; };
  SkinnyRun run;
  for (int index = 0; shares.run(block, index, run); ++index) {
    const int first_n = run.group * Tile::kRows;
    float sums[Tile::kSums] = {};
    // fp8: scales of the block of k that comes next; a's rows in pairs as the sums are.
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
    if (by_block) {
      load_scales(run.begin * Tile::kChunks);
    }
    for (int stage = run.begin; stage < run.end; ++stage, cursor.advance()) {
      const int slot = cursor.slot;
      full[slot].wait(cursor.parity);
#pragma unroll
      for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
        const uint64_t rows = tile_descriptor(chunk_b(slot, chunk) + warpgroup * 64 * kRowBytes);
        const uint64_t columns = tile_descriptor(chunk_a(slot, chunk));
        if constexpr (kFp8) {
          // Sums of 128 products in the tensor cores, which keep fewer bits than f32.
          float part[Tile::kSums];
          hold(part);
          wgmma_begin();
#pragma unroll
          for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
            wgmma<Format, Tile::kM>(part, advance(rows, i * kWgmmaRowBytes),
                                    advance(columns, i * kWgmmaRowBytes), i > 0);
          }
          wgmma_commit();
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
          hold(sums);
          wgmma_begin();
#pragma unroll
          for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
            wgmma<Format, Tile::kM>(sums, advance(rows, i * kWgmmaRowBytes),
                                    advance(columns, i * kWgmmaRowBytes), true);
          }
          wgmma_commit();
          hold(sums);
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

    if (run.end - run.begin < shares.stages_of_k) {
      // Of a block's groups, only the first and the last can be shared: it has two places, 0 for a
      // group that its share begins inside of and goes beyond.
      const int group_begin = run.group * shares.stages_of_k;
      const int group_end = group_begin + shares.stages_of_k;
      constexpr int kPart = Tile::kRows * Tile::kM;
      const int thread = threadIdx.x;
      const auto place = [&](int each) {
        return partials + (each * 2 + (shares.first_unit(each + 1) <= group_end ? 1 : 0)) * kPart;
      };
      float* mine = place(block);
#pragma unroll
      for (int i = 0; i < Tile::kSums; i += 4) {
        __stcg(reinterpret_cast<float4*>(mine + (i / 4 * kWarps * 32 + thread) * 4),
               make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
      }
      const int first_block = shares.block_of(group_begin);
      const int last_block = shares.block_of(group_end - 1);
      __threadfence();
      named_sync(1, kWarps * 32);
      if (thread == 0) {
        const unsigned others = static_cast<unsigned>(last_block - first_block);
        const unsigned came = atomicAdd(counters + run.group, 1u);
        *is_last = came == others;
        if (came == others) {
          counters[run.group] = 0;  // as the next launch wants it
        }
        __threadfence();
      }
      named_sync(1, kWarps * 32);
      if (!*is_last) {
        continue;
      }
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) {
        sums[i] = 0;
      }
      for (int each = first_block; each <= last_block; ++each) {
        const float* part = place(each);
#pragma unroll
        for (int i = 0; i < Tile::kSums; i += 4) {
          const float4 more =
              __ldcg(reinterpret_cast<const float4*>(part + (i / 4 * kWarps * 32 + thread) * 4));
          sums[i] += more.x;
          sums[i + 1] += more.y;
          sums[i + 2] += more.z;
          sums[i + 3] += more.w;
        }
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = first_n + row + 8 * half;
      if (n < out.n) {
        const float b_scale = kFp8 && !scales.blocks ? scales.b[n * scales.b_row] : 1;
#pragma unroll
        for (int i = 0; i < Tile::kSums / 2; ++i) {
          const int m = m_of(i / 2 * 4 + i % 2);
          if (m < out.m) {
            float value = sums[i / 2 * 4 + half * 2 + i % 2];
            if (kFp8 && !by_block) {
              value *= scales.a[m * scales.a_row] * b_scale;
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
}

}  // namespace weft::hopper
