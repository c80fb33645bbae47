// Weights in e4m3fn on sm_90a, as prompts' products on the tensor cores and in f32 take them: as
// codes until they are in registers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "arch/hopper/copy.cuh"
#include "base/fp8.h"
#include "base/scaling.h"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {

/// Two codes in e4m3fn as numbers.
__device__ __forceinline__ float2 e4m3_numbers(uint32_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(codes)));
  return __half22float2(reinterpret_cast<const __half2&>(halves));
}

// In e4m3fn with scales of blocks of 128 x 128: what shared memory holds of a row is in one.
static_assert(kScaleBlock % F32Tile::kDepth == 0);

struct __align__(16) E4m3Row {
  uint32_t codes[F32Tile::kDepth / 4];
  float scale;
};
template <>
struct F32Weights<e4m3fn> {
  using Row = E4m3Row;
  template <int kCount>
  __device__ __forceinline__ static void copy(Row* to, const F32Group& group, int64_t n, int64_t at,
                                              int64_t k) {
    const int r = static_cast<int>(threadIdx.x);
    if (r < kCount) {
      const int64_t row = group.first + r;
      const bool there = row < n;
#pragma unroll
      for (int i = 0; i < F32Tile::kDepth; i += 8) {
        const bool in_k = there && at + i < k;
        copy_async_8(
            to[r].codes + i / 4,
            static_cast<const char*>(group.w.data) + (in_k ? row * group.w.stride + at + i : 0),
            in_k);
      }
      const int64_t block = row / kScaleBlock * scale_blocks(k) + at / kScaleBlock;
      to[r].scale = there ? reinterpret_cast<const float*>(group.scales)[block] : 0.0f;
    }
  }
  __device__ __forceinline__ static void read(const Row& row, int d, float4 (&to)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = row.codes[d / 4 + i];
      const float2 low = e4m3_numbers(codes);
      const float2 high = e4m3_numbers(codes >> 16);
      to[i] = {low.x * row.scale, low.y * row.scale, high.x * row.scale, high.y * row.scale};
    }
  }
};

}  // namespace weft::hopper
