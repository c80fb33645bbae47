// Numbers of codes in MXFP4, as prompts' products take them: as bf16.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

/// A scale of MXFP4: a power of two.
WEFT_GPU float mx_scale(uint32_t scale) {
  constexpr uint32_t kNan = 0x7fc00000;
  const uint32_t bits = scale == 0 ? 0x00400000 : scale == 255 ? kNan : scale << 23;
  return __builtin_bit_cast(float, bits);
}
/// The number of the lowest code, whose exponent and mantissa are an f32's but for the bias.
WEFT_GPU float mx_number(uint32_t code, float scale) {
  const uint32_t as_f32 = (code & 8) << 28 | (code & 7) << 22;
  return __builtin_bit_cast(float, as_f32) * 0x1p126F * scale;
}

#if defined(__gfx950__)

/// Eight bf16 numbers in the order in which a word of codes gives them: as they are.
WEFT_GPU u32x4 in_mx_order(u32x4 x) { return x; }
/// Where the code of the i-th of them begins in the word.
WEFT_GPU int mx_bit(int i) { return 4 * i; }

/// Numbers of codes under a scale, by the instruction for it.
class MxTable {
 public:
  /// Whether all of them are normal.
  WEFT_GPU bool has(uint32_t scale) { return scale - 2 <= 250; }
  __device__ __attribute__((always_inline)) explicit MxTable(uint32_t scale)
      : scale_(mx_scale(scale)) {}
  __device__ __attribute__((always_inline)) u32x4 numbers(uint32_t codes) const {
    return {
        __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, scale_, 0)),
        __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, scale_, 1)),
        __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, scale_, 2)),
        __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, scale_, 3))};
  }

 private:
  float scale_;
};

#else

/// Eight bf16 numbers in the order in which a word of codes gives them: 0, 2, 4, 6, 1, 3, 5, 7.
WEFT_GPU u32x4 in_mx_order(u32x4 x) {
  return {
      __builtin_amdgcn_perm(x[1], x[0], 0x05040100), __builtin_amdgcn_perm(x[3], x[2], 0x05040100),
      __builtin_amdgcn_perm(x[1], x[0], 0x07060302), __builtin_amdgcn_perm(x[3], x[2], 0x07060302)};
}

/// Where the code of the i-th of them begins in the word.
WEFT_GPU int mx_bit(int i) { return i < 4 ? 8 * i : 8 * (i - 4) + 4; }

/// What the 8 magnitudes of codes are under a scale, in bf16: their low and high bytes, which
/// v_perm_b32 looks up for four codes at once.
class MxTable {
 public:
  /// Whether all magnitudes under it are normal numbers.
  WEFT_GPU bool has(uint32_t scale) { return scale - 2 <= 250; }
  __device__ __attribute__((always_inline)) explicit MxTable(uint32_t scale) {
    const uint32_t one = scale << 7;
    const uint32_t half = (one - 0x80) << 16;  // and 0
    const uint32_t ones = (one << 16 | one) + 0x00400000;
    const uint32_t twos = ones + 0x00800080;
    const uint32_t fours = twos + 0x00800080;
    low_ = {__builtin_amdgcn_perm(ones, half, 0x06040200),
            __builtin_amdgcn_perm(fours, twos, 0x06040200)};
    high_ = {__builtin_amdgcn_perm(ones, half, 0x07050301),
             __builtin_amdgcn_perm(fours, twos, 0x07050301)};
  }
  __device__ __attribute__((always_inline)) u32x4 numbers(uint32_t codes) const {
    const u32x2 even = four(codes & 0x07070707, (codes & 0x08080808) << 4);
    const u32x2 odd = four(codes >> 4 & 0x07070707, codes & 0x80808080);
    return {even[0], even[1], odd[0], odd[1]};
  }

 private:
  __device__ __attribute__((always_inline)) u32x2 four(uint32_t sizes, uint32_t signs) const {
    const uint32_t low = __builtin_amdgcn_perm(low_[1], low_[0], sizes);
    const uint32_t high = __builtin_amdgcn_perm(high_[1], high_[0], sizes) | signs;
    return {__builtin_amdgcn_perm(high, low, 0x05010400),
            __builtin_amdgcn_perm(high, low, 0x07030602)};
  }
  u32x2 low_;
  u32x2 high_;
};
#endif

/// The same under any scale.
WEFT_GPU u32x4 mx_numbers(uint32_t codes, uint32_t scale) {
  const float factor = mx_scale(scale);
  Vector<float, 8> x;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    x[i] = mx_number(codes >> mx_bit(i), factor);
  }
  return __builtin_bit_cast(u32x4, __builtin_convertvector(x, Vector<bf16_t, 8>));
}

}  // namespace weft::cdna
