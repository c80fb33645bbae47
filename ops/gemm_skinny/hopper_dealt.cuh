// The product of several rows on sm_90a by small blocks: each has 16 or 32 whole rows of b, and the
// hardware deals blocks out, two or three to a multiprocessor. Memory serves long pieces of few
// rows faster than the narrow columns of many that hopper_stream.cuh reads, and few rows of b, k
// uncut, still fill the device. Warps take turns along k and multiply with the tensor cores' small
// products: b's rows on the wide side, a's on the other, and so as few of those as there are.
#pragma once

#include "arch/hopper/copy.cuh"
#include "arch/hopper/resident.cuh"
#include "ops/gemm_skinny/hopper_stream.cuh"

namespace weft::hopper {

/// kM: rows of a, padded: 8, 16 or 32. kRows: rows of b of a block. A stage has kChunks * kRowBytes
/// of k, of which each of kWarps warps takes as much.
template <class FormatType, int kMValue, int kRowsValue, int kChunksValue, int kStagesValue,
          int kWarpsValue>
struct DealtTile {
  using Format = FormatType;
  static constexpr int kM = kMValue;
  static constexpr int kRows = kRowsValue;
  static constexpr int kChunks = kChunksValue;
  static constexpr int kStages = kStagesValue;
  static constexpr int kWarps = kWarpsValue;
  static constexpr int kThreads = kWarps * 32 + 64;
  static constexpr int kBBytes = kChunks * kRows * kRowBytes;
  static constexpr int kABytes = kChunks * kM * kRowBytes;
  static constexpr int kStageBytes = kBBytes + kABytes;
  static constexpr int kElements = kChunks * kRowBytes / Format::kBytes;  // of k in a stage
  static constexpr int kSums = kRows * kM;
  static constexpr int kBytes = 1024 + kStages * kStageBytes;
  static_assert(kChunks % kWarps == 0 && kM % 8 == 0 && kRows % 16 == 0);
  static_assert(kWarps * kSums * 4 <= kStages * kStageBytes, "warps' sums take the stages' place");
};

/// Loads the box at (0, row) of plane `chunk` and of as many next planes as it has.
__device__ inline void load_chunks(void* to, const CUtensorMap& map, int row, int chunk,
                                   Barrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(0), "r"(row), "r"(chunk), "l"(policy)
      : "memory");
}

/// Asks for the same to be in L2; see prefetch_bytes().
__device__ inline void prefetch_chunks(const CUtensorMap& map, int row, int chunk) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile [%0, {%1, %2, %3}];" ::"l"(&map),
               "r"(0), "r"(row), "r"(chunk)
               : "memory");
}

/// d += 32 bytes of k of 16 rows and of 8: lanes hold what mma_bf16() says, in fp8 twice as many
/// numbers in the same bytes.
__device__ inline void multiply(Bf16 /*format*/, float (&d)[4], const uint4& a, uint32_t b0,
                                uint32_t b1) {
  mma_bf16(d, a, b0, b1);
}
__device__ inline void multiply(E4m3 /*format*/, float (&d)[4], const uint4& a, uint32_t b0,
                                uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// Until the phase of `go` has ended, or for so many cycles.
__device__ inline void wait_a_while(Barrier& go, int64_t cycles) {
  const int64_t begin = clock64();
  while (!go.test(0) && clock64() - begin < cycles) {
  }
}

/// After so many cycles, about a microsecond, the rows of a of the kernel before have passed the
/// copy engine, and a block asks for more than kEarlyStages of b.
inline constexpr int64_t kEarlyCycles = 2000;

/// The maps' boxes are kRows and kM rows of a stage's chunks, which are planes.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    gemm_skinny_dealt(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                      int stages, int k_blocks, const __grid_constant__ SkinnyScales scales,
                      const __grid_constant__ SkinnyOut out, SkinnyOverlap overlap) {
  using Format = typename Tile::Format;
  constexpr bool kFp8 = Format::kBytes == 1;
  if (!overlap.late) {
    let_next_begin();
  }
  extern __shared__ __align__(1024) char memory[];
  __shared__ Barrier full[Tile::kStages];
  __shared__ Barrier empty[Tile::kStages];
  __shared__ Barrier go;  // the kernel before is complete
  char* base = memory + (1024 - smem_address(memory) % 1024) % 1024;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int first_n = blockIdx.x * Tile::kRows;
  RingCursor<Tile::kStages> cursor;

  if (warp == Tile::kWarps && elect_one()) {
    prefetch_map(b);
    prefetch_map(a);
    for (int slot = 0; slot < Tile::kStages; ++slot) {
      full[slot].init(2);
      empty[slot].init(Tile::kWarps);
    }
    go.init(1);
    fence_barriers();
  }
  __syncthreads();

  if (warp >= Tile::kWarps) {
    // A feeder for each operand: b's loads go ahead where a's have to wait.
    const bool of_b = warp == Tile::kWarps;
    const bool chosen = elect_one();
    if (!of_b && chosen) {  // a part of a each
      prefetch_chunks(a, 0, static_cast<int>(blockIdx.x) % stages * Tile::kChunks);
    }
    const bool ahead = of_b && overlap.constant_b;
    if (!ahead) {
      wait_for_earlier();
    }
    if (!of_b && chosen) {
      go.arrive();
    }
    const uint64_t policy = of_b ? evict_first() : evict_unchanged();
    const CUtensorMap& map = of_b ? b : a;
    const int row = of_b ? first_n : 0;
    char* to = base + (of_b ? 0 : Tile::kBBytes);
    for (int stage = 0; stage < stages; ++stage, cursor.advance()) {
      const int slot = cursor.slot;
      if (ahead && stage == kEarlyStages) {
        wait_a_while(go, kEarlyCycles);
      }
      empty[slot].wait(cursor.parity ^ 1);
      if (chosen) {
        full[slot].arrive_expect(of_b ? Tile::kBBytes : Tile::kABytes);
        load_chunks(to + slot * Tile::kStageBytes, map, row, stage * Tile::kChunks, full[slot],
                    policy);
      }
    }
    if (of_b && overlap.late) {
      let_next_begin();
    }
    return;
  }

  wait_for_earlier();
  constexpr int kThreads = Tile::kWarps * 32;
  constexpr int kGroups = Tile::kRows / 16;
  constexpr int kColumns = Tile::kM / 8;
  const bool by_block = kFp8 && scales.blocks;
  // The sums that this thread stores, all of one row of b. Other scales are asked for now: at the
  // end their way from memory would show.
  static_assert(kThreads % Tile::kRows == 0);
  const int n = first_n + static_cast<int>(threadIdx.x) % Tile::kRows;
  const int first_m = static_cast<int>(threadIdx.x) / Tile::kRows;
  constexpr int kStepM = kThreads / Tile::kRows;
  constexpr int kOwn = ceil_div(Tile::kM, kStepM);
  float scale[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    scale[i] = 1;
    if (kFp8 && !by_block) {
      scale[i] = scales.a[min(first_m + i * kStepM, out.m - 1) * scales.a_row] *
                 scales.b[min(n, out.n - 1) * scales.b_row];
    }
  }
  // Where this lane's rows of 16 bytes are: of b's 16 rows, each with two neighbours, and of a's 8
  // with four; chunks of 16 bytes are swizzled (swizzle_128()).
  const uint32_t b_row = lane % 16 * kRowBytes;
  const uint32_t a_row = lane % 8 * kRowBytes;
  const auto swizzled = [&](int sixteenth) { return (sixteenth ^ lane % 8) * 16; };

  float sums[kGroups][kColumns][4] = {};
  for (int stage = 0; stage < stages; ++stage, cursor.advance()) {
    const int slot = cursor.slot;
    // Scales of blocks, on their way while the stage is.
    constexpr int kChunksOfWarp = Tile::kChunks / Tile::kWarps;
    float factors[kChunksOfWarp][kColumns][2];
    if (by_block) {
#pragma unroll
      for (int i = 0; i < kChunksOfWarp; ++i) {
        // Past the end of k both operands are zeros: a scale of zero keeps an infinite one out.
        const int block = stage * Tile::kChunks + i * Tile::kWarps + warp;
        const bool inside = block < k_blocks;
        const float of_b =
            inside ? scales.b[first_n / 128 * scales.b_row + block * scales.b_block] : 0;
#pragma unroll
        for (int m = 0; m < kColumns; ++m) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int row = m * 8 + lane % 4 * 2 + j;
            factors[i][m][j] = inside && row < out.m
                                   ? of_b * scales.a[row * scales.a_row + block * scales.a_block]
                                   : 0;
          }
        }
      }
    }
    full[slot].wait(cursor.parity);
    uint32_t read = 0;  // something of all that was read
    const uint32_t at = smem_address(base + slot * Tile::kStageBytes);
#pragma unroll
    for (int i = 0; i < kChunksOfWarp; ++i) {
      const int chunk = i * Tile::kWarps + warp;
      const uint32_t b_at = at + chunk * Tile::kRows * kRowBytes + b_row;
      const uint32_t a_at = at + Tile::kBBytes + chunk * Tile::kM * kRowBytes + a_row;
      float part[kGroups][kColumns][4] = {};
      auto& to = kFp8 ? part : sums;  // fp8: sums of 128 products, as hopper_stream.cuh has them
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 y[kColumns];
#pragma unroll
        for (int m = 0; m < kColumns; ++m) {
          y[m] = load_matrices_x4(a_at + m * kSwizzleBytes + swizzled(half * 4 + lane / 8));
          read |= y[m].x;
        }
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const uint32_t rows = b_at + group * 2 * kSwizzleBytes;
          const uint4 x0 = load_matrices_x4(rows + swizzled(half * 4 + lane / 16));
          const uint4 x1 = load_matrices_x4(rows + swizzled(half * 4 + 2 + lane / 16));
          read |= x0.x | x1.x;
#pragma unroll
          for (int m = 0; m < kColumns; ++m) {
            multiply(Format{}, to[group][m], x0, y[m].x, y[m].y);
            multiply(Format{}, to[group][m], x1, y[m].z, y[m].w);
          }
        }
      }
      if constexpr (kFp8) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int m = 0; m < kColumns; ++m) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              sums[group][m][j] +=
                  by_block ? part[group][m][j] * factors[i][m][j % 2] : part[group][m][j];
            }
          }
        }
      }
    }
    __syncwarp();  // all lanes have read
    if (lane == 0) {
      empty[slot].arrive_after(read);
    }
  }

  // All stages have been read; sums of warps, [m][row], take their place and are added in order.
  named_sync(1, kThreads);
  float* parts = reinterpret_cast<float*>(base);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int m = 0; m < kColumns; ++m) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = group * 16 + lane / 4 + j / 2 * 8;
        parts[warp * Tile::kSums + (m * 8 + lane % 4 * 2 + j % 2) * Tile::kRows + row] =
            sums[group][m][j];
      }
    }
  }
  named_sync(1, kThreads);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int m = first_m + i * kStepM;
    if (m < out.m && n < out.n) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < Tile::kWarps; ++w) {
        value += parts[w * Tile::kSums + m * Tile::kRows + (n - first_n)];
      }
      value *= scale[i];
      const int64_t to = m * out.stride + n;
      if (out.f32) {
        static_cast<float*>(out.data)[to] = value;
      } else {
        static_cast<uint16_t*>(out.data)[to] = static_cast<uint16_t>(pack_bf16x2(value, 0));
      }
    }
  }
}

}  // namespace weft::hopper
