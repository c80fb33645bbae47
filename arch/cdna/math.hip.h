// Functions that the compiler would take from device libraries, which there are none of here.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

/// 2^x to a unit in the last place or two; 0 where that would be denormal.
WEFT_GPU float exp2_of(float x) { return __builtin_amdgcn_exp2f(x); }
/// log2 of a number that is not denormal, likewise.
WEFT_GPU float log2_of(float x) { return __builtin_amdgcn_logf(x); }

/// e^x likewise, however large x is.
WEFT_GPU float exp_of(float x) {
  constexpr float kLog2E = 1.44269502f;
  constexpr float kLog2ERest = 1.92596299e-8f;
  const float whole = __builtin_rintf(x * kLog2E);
  // Exponents that overflow would turn the difference into NaN.
  const bool finite = __builtin_fabsf(whole) < 256;
  const float n = finite ? whole : 0;
  const float rest = __builtin_fmaf(x, kLog2ERest, __builtin_fmaf(x, kLog2E, -n));
  return exp2_of(finite ? rest : x) * (finite ? exp2_of(n) : 1);
}

/// tanh(x) to 4 units of 1.
WEFT_GPU float tanh_of(float x) {
  constexpr float kLog2E = 1.44269502f;
  const float e = exp2_of(-2 * kLog2E * __builtin_fabsf(x));
  return __builtin_copysignf((1 - e) * __builtin_amdgcn_rcpf(1 + e), x);
}

struct SineCosine {
  double sine;
  double cosine;
};

/// Of an angle up to 2^20 in size, to 10^-13 of each: the angle less the nearest quarter turns,
/// which are taken away in three pieces whose products with a number of 20 bits are exact (Cody and
/// Waite), then Taylor's polynomials.
WEFT_GPU SineCosine sine_cosine(double angle) {
  constexpr double kQuarter = 0x1.921fb544p0;  // pi / 2 by 33 bits at a time
  constexpr double kQuarterMore = 0x1.0b4611a6p-34;
  constexpr double kQuarterRest = 0x1.3198a2e037073p-69;
  const double turns = __builtin_rint(angle * 0.63661977236758134308);
  const double x =
      __builtin_fma(-turns, kQuarterRest,
                    __builtin_fma(-turns, kQuarterMore, __builtin_fma(-turns, kQuarter, angle)));
  const double y = x * x;
  constexpr double kSine[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880,
                              -1.0 / 5040,      1.0 / 120,       -1.0 / 6};
  constexpr double kCosine[] = {
      -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5};
  double sine = 0;
#pragma unroll
  for (const double factor : kSine) {
    sine = __builtin_fma(sine, y, factor);
  }
  sine = __builtin_fma(sine * y, x, x);
  double cosine = 0;
#pragma unroll
  for (const double factor : kCosine) {
    cosine = __builtin_fma(cosine, y, factor);
  }
  cosine = __builtin_fma(cosine, y, 1.0);
  const int quarter = static_cast<int>(turns);
  const bool odd = (quarter & 1) != 0;
  const double first = odd ? cosine : sine;
  const double second = odd ? sine : cosine;
  return {.sine = (quarter & 2) != 0 ? -first : first,
          .cosine = ((quarter + 1) & 2) != 0 ? -second : second};
}

}  // namespace weft::cdna
