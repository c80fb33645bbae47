// Sine and cosine of an f32 angle, in double: kernels are compiled without a mathematical library.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

struct SineCosine {
  float sine;
  float cosine;
};

/// Rounded to f32 once, of angles up to 2^24: the multiples of pi / 2 are taken off in two parts
/// (Cody and Waite), then Taylor's series on [-pi / 4, pi / 4], whose next terms are below 2^-53.
WEFT_GPU SineCosine sincos_of(float angle) {
  constexpr double kHalfPi = 0x1.921fb54442d18p+0;
  constexpr double kRest = 0x1.1a62633145c07p-54;  // pi / 2 less kHalfPi
  const double x = angle;
  const double turns = __builtin_rint(x * 0x1.45f306dc9c883p-1);
  const double r = __builtin_fma(-turns, kRest, __builtin_fma(-turns, kHalfPi, x));
  const double z = r * r;
  double s = -1.0 / 1307674368000;  // 15!
  s = __builtin_fma(s, z, 1.0 / 6227020800);
  s = __builtin_fma(s, z, -1.0 / 39916800);
  s = __builtin_fma(s, z, 1.0 / 362880);
  s = __builtin_fma(s, z, -1.0 / 5040);
  s = __builtin_fma(s, z, 1.0 / 120);
  s = __builtin_fma(s, z, -1.0 / 6);
  const double sine = __builtin_fma(s * z, r, r);
  double c = 1.0 / 20922789888000;  // 16!
  c = __builtin_fma(c, z, -1.0 / 87178291200);
  c = __builtin_fma(c, z, 1.0 / 479001600);
  c = __builtin_fma(c, z, -1.0 / 3628800);
  c = __builtin_fma(c, z, 1.0 / 40320);
  c = __builtin_fma(c, z, -1.0 / 720);
  c = __builtin_fma(c, z, 1.0 / 24);
  c = __builtin_fma(c, z, -1.0 / 2);
  const double cosine = __builtin_fma(c, z, 1.0);
  const int quadrant = static_cast<int>(turns) & 3;
  const double odd = quadrant & 1 ? 1 : 0;
  const double a = odd != 0 ? cosine : sine;  // of the sine
  const double b = odd != 0 ? sine : cosine;
  return {static_cast<float>(quadrant & 2 ? -a : a),
          static_cast<float>(quadrant == 1 || quadrant == 2 ? -b : b)};
}

}  // namespace weft::cdna
