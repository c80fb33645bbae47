// How kernels on rows write their result: Quantised of ops/scales.h for this target.
#pragma once

#include "arch/cdna/reduce.hip.h"
#include "arch/cdna/round.hip.h"

namespace weft::cdna {

/// The fp8 format that the matrix units take: e4m3fnuz on gfx942, e4m3fn on gfx950. What
/// v_cvt_pk_fp8_f32 rounds to.
inline constexpr float kFp8Max = kTarget == Target::gfx942 ? 240 : 448;
inline constexpr float kLeastAmax = 1e-10f;

/// From here on this wave's conversions saturate: what is beyond the largest finite number, an
/// infinity included, becomes that number, and NaN stays NaN (MODE.FP16_OVFL; manual, section 7.2).
/// f16 conversions saturate too, so none may follow. The caller's conversions must depend on the
/// `x` that is returned, which orders them after this.
WEFT_GPU float saturate_from_here(float x) {
  asm volatile("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1" : "+v"(x));
  return x;
}

/// Eight numbers to fp8, rounded to nearest even.
WEFT_GPU u32x2 to_fp8(f32x8 x) {
  u32x2 packed;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int word = 0;
    word = __builtin_amdgcn_cvt_pk_fp8_f32(x[4 * half], x[4 * half + 1], word, false);
    word = __builtin_amdgcn_cvt_pk_fp8_f32(x[4 * half + 2], x[4 * half + 3], word, true);
    packed[half] = static_cast<uint32_t>(word);
  }
  return packed;
}

/// The largest magnitude, NaN passed over; 0 of NaN alone.
WEFT_GPU float largest_magnitude(f32x8 x) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    largest = __builtin_fmaxf(largest, __builtin_fabsf(x[i]));
  }
  return largest;
}

/// The scale for numbers up to `amax`, which is written, and its inverse, which numbers are
/// multiplied with. An infinite scale has the inverse 0, and infinity * 0 is NaN, as it should be.
struct Fp8Scale {
  float scale;
  float inverse;
};
WEFT_GPU Fp8Scale fp8_scale_for(float amax) {
  const float scale = __builtin_fmaxf(amax, kLeastAmax) * (1 / kFp8Max);
  return {scale, __builtin_amdgcn_rcpf(scale)};
}

}  // namespace weft::cdna
