// The product of one row on sm_90a: threads multiply and add, no tensor cores and no shared memory
// on the way in. A warp reads 512 bytes of a row of b at a time, and a block whole rows, which
// memory serves faster than the narrow columns of tiles (hopper_stream.cuh); and the first loads go
// out at once.
#pragma once

#include "arch/hopper/copy.cuh"
#include "ops/gemm_skinny/hopper_stream.cuh"

namespace weft::hopper {

/// What the kernel reads.
struct VectorOperands {
  const char* a = nullptr;  ///< one row
  const char* b = nullptr;
  int64_t b_stride = 0;  ///< bytes
  int row_bytes = 0;     ///< of k
  int steps = 0;         ///< of kVectorStep bytes, of each warp
  bool once = false;     ///< b leaves L2 first: see reads_once()
  bool constant_b = false;
};

/// kRows: of b, that a block has. kVectorLoads loads of each thread are under way.
/// kResident: blocks of kVectorMostWarps that a multiprocessor holds, at least.
template <class FormatType, int kRowsValue, bool kBlocksValue, int kResidentValue>
struct VectorTile {
  using Format = FormatType;
  static constexpr int kResident = kResidentValue;
  static constexpr int kRows = kRowsValue;
  static constexpr bool kBlocks = kBlocksValue;  ///< scales of blocks; else of rows or of all
  static constexpr int kDepth = kVectorLoads / kRows;
  static constexpr int kNumbers = 16 / Format::kBytes;  ///< of a load
};

/// The numbers of 16 bytes.
__device__ inline void widen(Bf16 /*format*/, const uint4& codes, float (&values)[8]) {
  const uint32_t pairs[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[2 * i] = __uint_as_float(pairs[i] << 16);
    values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
  }
}
__device__ inline void widen(E4m3 /*format*/, const uint4& codes, float (&values)[16]) {
  const uint32_t fours[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    asm("{\n.reg .b32 pair;\n.reg .b16 low, high;\n"
        "cvt.rn.f16x2.e4m3x2 pair, %2;\n"
        "mov.b32 {low, high}, pair;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n}"
        : "=f"(values[2 * i]), "=f"(values[2 * i + 1])
        : "h"(static_cast<uint16_t>(fours[i / 2] >> (i % 2 * 16))));
  }
}

/// 16 bytes, or zeros where not `valid`: no branch, so that many loads are under way together. Not
/// by .nc, which wants what nobody writes while this kernel runs: the one before may still do.
__device__ inline uint4 load_valid(const char* from, bool valid) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(static_cast<uint32_t>(valid)));
  return v;
}
/// The same, past L1 and with a cache policy.
__device__ inline uint4 load_valid(const char* from, bool valid, uint64_t policy) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.u32 p, %6, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], "
      "%5;\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "l"(policy), "r"(static_cast<uint32_t>(valid)));
  return v;
}

/// Block i has kRows rows of b from i kRows on, and its warps take turns along k.
template <class Tile>
__global__ void __launch_bounds__(kVectorMostWarps * 32, Tile::kResident)
    gemm_skinny_vector(const __grid_constant__ VectorOperands in,
                       const __grid_constant__ SkinnyScales scales,
                       const __grid_constant__ SkinnyOut out) {
  using Format = typename Tile::Format;
  let_next_begin();
  __shared__ float parts[kVectorMostWarps][Tile::kRows];
  constexpr int kPrefetch = 1024;  // bytes of a that a block asks for ahead
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int warps = blockDim.x / 32;
  const int first_n = blockIdx.x * Tile::kRows;
  const uint64_t policy = in.once ? evict_first() : evict_unchanged();
  // Where this thread loads next, of rows of b and of a.
  int at = warp * kVectorStep + lane * 16;
  const int stride = warps * kVectorStep;
  const char* rows[Tile::kRows];
#pragma unroll
  for (int i = 0; i < Tile::kRows; ++i) {
    rows[i] = in.b + min(first_n + i, out.n - 1) * in.b_stride + at;
  }
  uint4 a[Tile::kDepth];
  uint4 b[Tile::kDepth][Tile::kRows];
  float scale[Tile::kDepth] = {};  // of blocks: a's times b's, whose rows are of one block of n
  const auto load_b = [&](int slot, int from) {
#pragma unroll
    for (int i = 0; i < Tile::kRows; ++i) {
      b[slot][i] = load_valid(rows[i], from < in.row_bytes, policy);
      rows[i] += stride;
    }
  };
  const auto load_a = [&](int slot) {
    const bool valid = at < in.row_bytes;
    a[slot] = load_valid(in.a + at, valid);
    if constexpr (Tile::kBlocks) {
      const int block = at / static_cast<int>(kScaleBlock);  // of k, and a number is a byte
      scale[slot] =
          valid ? scales.a[block * scales.a_block] *
                      scales.b[first_n / kScaleBlock * scales.b_row + block * scales.b_block]
                : 0;
    }
    at += stride;
  };
  if (!in.constant_b) {
    wait_for_earlier();
  }
#pragma unroll
  for (int slot = 0; slot < Tile::kDepth; ++slot) {
    load_b(slot, at + slot * stride);
  }
  if (const int from = static_cast<int>(blockIdx.x) * kPrefetch;
      threadIdx.x == 0 && from < in.row_bytes) {
    prefetch_bytes(in.a + from, min(kPrefetch, in.row_bytes - from));
  }
  wait_for_earlier();
#pragma unroll
  for (int slot = 0; slot < Tile::kDepth; ++slot) {
    load_a(slot);
  }
  // Other scales are asked for now too: at the end their way from memory would show.
  const int n = first_n + static_cast<int>(threadIdx.x);
  const bool mine = threadIdx.x < Tile::kRows && n < out.n;
  float a_scale = 1;
  float b_scale = 1;
  if (Format::kBytes == 1 && !Tile::kBlocks && mine) {
    a_scale = scales.a[0];
    b_scale = scales.b[n * scales.b_row];
  }

  float sums[Tile::kRows] = {};
#pragma unroll 1
  for (int step = 0; step < in.steps; step += Tile::kDepth) {
#pragma unroll
    for (int slot = 0; slot < Tile::kDepth; ++slot) {
      float x[Tile::kNumbers];
      widen(Format{}, a[slot], x);
#pragma unroll
      for (int i = 0; i < Tile::kRows; ++i) {
        float y[Tile::kNumbers];
        widen(Format{}, b[slot][i], y);
        float part = Tile::kBlocks ? 0 : sums[i];
#pragma unroll
        for (int j = 0; j < Tile::kNumbers; ++j) {
          part += x[j] * y[j];
        }
        sums[i] = Tile::kBlocks ? sums[i] + part * scale[slot] : part;
      }
      load_b(slot, at);
      load_a(slot);
    }
  }
#pragma unroll
  for (int i = 0; i < Tile::kRows; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], distance);
    }
    if (lane == 0) {
      parts[warp][i] = sums[i];
    }
  }
  __syncthreads();
  if (mine) {
    float value = 0;
    for (int i = 0; i < warps; ++i) {
      value += parts[i][threadIdx.x];
    }
    value *= a_scale * b_scale;
    if (out.f32) {
      static_cast<float*>(out.data)[n] = value;
    } else {
      static_cast<uint16_t*>(out.data)[n] = static_cast<uint16_t>(pack_bf16x2(value, 0));
    }
  }
}

}  // namespace weft::hopper
