// Weights in MXFP4 (base/mx.h) on sm_90a, as prompts' products on the tensor cores and in f32 take
// them: as codes until they are in registers.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "arch/hopper/copy.cuh"
#include "base/mx.h"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {

/// Eight codes, element i in bits 4 i and up, as pairs (i, i + 4) in bf16: pairs[i] for i < 4.
/// These come apart by shifts of the whole word, neighbours would not. Sign, exponent and mantissa
/// are put where bf16 has them, which makes numbers too small by 2^126. `scale`: see mx_scale().
__device__ __forceinline__ void mx_pairs(uint32_t codes, __nv_bfloat162 scale,
                                         uint32_t (&pairs)[4]) {
  constexpr uint32_t kSigns = 0x80008000u;
  constexpr uint32_t kNumbers = 0x01c001c0u;
  const uint32_t numbers[4] = {codes << 6, codes << 2, codes >> 2, codes >> 6};
  const __nv_bfloat162 up = __bfloat162bfloat162(__ushort_as_bfloat16(0x7e80));  // 2^126
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = (codes << (12 - 4 * i) & kSigns) | (numbers[i] & kNumbers);
    const __nv_bfloat162 pair =
        __hmul2(__hmul2(reinterpret_cast<const __nv_bfloat162&>(bits), up), scale);
    pairs[i] = reinterpret_cast<const uint32_t&>(pair);
  }
}
/// An e8m0 as two bf16, which have all its numbers, 2^-127 among their subnormal ones.
__device__ __forceinline__ __nv_bfloat162 mx_scale(uint32_t bits) {
  const uint32_t number = bits == 255 ? 0x7fffu : max(bits << 7, 0x40u);
  return __bfloat162bfloat162(__ushort_as_bfloat16(static_cast<uint16_t>(number)));
}

/// Elements 8 t .. 8 t + 7 of a row of bf16 in the order of mx_pairs().
__device__ __forceinline__ uint4 pairs_apart(uint4 x) {
  return {__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
          __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632)};
}

// The same for sums that take a block's scale afterwards, and without the ALU, which is what bounds
// mx_pairs(): two codes are looked up in shared memory, where each lane has all pairs in its bank.

/// The number of a word's lowest code.
__device__ __forceinline__ float mx_number(uint32_t code) {
  return __uint_as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
}
inline constexpr int kMxPairs = 256;
/// Fills the table of pairs: by all threads of a block, before a barrier.
template <int kThreads>
__device__ __forceinline__ void fill_mx_pairs(uint32_t (&table)[kMxPairs][32]) {
  for (int i = static_cast<int>(threadIdx.x) * 4; i < kMxPairs * 32; i += kThreads * 4) {
    const uint32_t codes = i / 32;
    const auto bf16 = [](uint32_t code) { return __float_as_uint(mx_number(code)) >> 16; };
    const uint32_t pair = bf16(codes) | bf16(codes >> 4) << 16;
    *reinterpret_cast<uint4*>(&table[0][i]) = {pair, pair, pair, pair};
  }
}
/// Eight codes as bf16, two by two in order. `table`: this lane's first pair in shared memory.
__device__ __forceinline__ void mx_pairs(uint32_t codes, uint32_t table, uint32_t (&pairs)[4]) {
  constexpr uint32_t kStride = 32 * sizeof(uint32_t);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // A byte times the stride, in one instruction.
    const uint32_t place = __dp4a(codes, kStride << (8 * i), table);
    asm("ld.shared.u32 %0, [%1];" : "=r"(pairs[i]) : "r"(place));
  }
}
/// The i-th of four e8m0. 2^-127 is taken for 0.
__device__ __forceinline__ float mx_scale_of(uint32_t four, int i) {
  const float x = __uint_as_float(__dp4a(four, 0x80u << (8 * i), 0u) << 16);
  return fmaf(x, 0.0f, x);  // of 255, an infinity, NaN
}

// In f32: a block is what shared memory holds of a row at a time.
static_assert(F32Tile::kDepth == kMxBlock);

struct Mxfp4 {};  ///< the format's tag
struct __align__(16) MxRow {
  uint32_t codes[4];
  float scale;
};
template <>
struct F32Weights<Mxfp4> {
  using Row = MxRow;
  template <int kCount>
  __device__ __forceinline__ static void copy(Row* to, const F32Group& group, int64_t n, int64_t at,
                                              int64_t k) {
    const int r = static_cast<int>(threadIdx.x);
    if (r < kCount) {
      const int64_t row = group.first + r;
      const bool there = row < n;
      const int64_t block = there ? row * (k / kMxBlock) + at / kMxBlock : 0;
      copy_async_16(to[r].codes,
                    static_cast<const char*>(group.w.data) + block * int64_t{kMxBlock / 2}, there);
      const uint32_t bits = group.scales[block];
      to[r].scale = __uint_as_float(bits == 255 ? 0x7fc00000u : max(bits << 23, 0x00400000u));
    }
  }
  __device__ __forceinline__ static void read(const Row& row, int d, float4 (&to)[2]) {
    const uint32_t codes = row.codes[d / 8];
    const auto number = [&](int i) { return mx_number(codes >> (4 * i)) * row.scale; };
    to[0] = {number(0), number(1), number(2), number(3)};
    to[1] = {number(4), number(5), number(6), number(7)};
  }
};

}  // namespace weft::hopper
