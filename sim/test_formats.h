// Number formats for the simulator's tests: a model in long double, written from the tables of the
// manuals (CDNA3 section 7.2, CDNA4 section 7.3) and sharing nothing with base/ and sim/.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "sim/target.h"

namespace weft::sim::test {

using Real = long double;
inline constexpr Real kRealNan = std::numeric_limits<Real>::quiet_NaN();
inline constexpr Real kRealInfinity = std::numeric_limits<Real>::infinity();

struct Format {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  enum Specials {
    ieee,          ///< the top exponent: infinities and NaNs
    nan_only,      ///< all ones: NaN
    unsigned_nan,  ///< the code of -0: NaN
    finite         ///< none
  } specials;

  constexpr int width() const { return 1 + exponent_bits + mantissa_bits; }
  constexpr uint64_t sign() const { return uint64_t{1} << (width() - 1); }
};

inline constexpr Format kF64{11, 52, 1023, Format::ieee};
inline constexpr Format kF32{8, 23, 127, Format::ieee};
inline constexpr Format kF16{5, 10, 15, Format::ieee};
inline constexpr Format kBf16{8, 7, 127, Format::ieee};
inline constexpr Format kFp6{2, 3, 1, Format::finite};
inline constexpr Format kBf6{3, 2, 3, Format::finite};
inline constexpr Format kFp4{2, 1, 1, Format::finite};
constexpr Format fp8_of(Target target) {
  return target == Target::gfx950 ? Format{4, 3, 7, Format::nan_only}
                                  : Format{4, 3, 8, Format::unsigned_nan};
}
constexpr Format bf8_of(Target target) {
  return target == Target::gfx950 ? Format{5, 2, 15, Format::ieee}
                                  : Format{5, 2, 16, Format::unsigned_nan};
}

inline Real decode(uint64_t code, const Format& f) {
  const bool negative = (code & f.sign()) != 0;
  const auto mantissa = static_cast<Real>(code & ((uint64_t{1} << f.mantissa_bits) - 1));
  const int exponent =
      static_cast<int>(code >> f.mantissa_bits & ((uint64_t{1} << f.exponent_bits) - 1));
  const bool top = exponent == (1 << f.exponent_bits) - 1;
  if (f.specials == Format::unsigned_nan && code == f.sign()) {
    return kRealNan;
  }
  if (f.specials == Format::nan_only && top &&
      mantissa == std::ldexp(Real{1}, f.mantissa_bits) - 1) {
    return kRealNan;
  }
  if (f.specials == Format::ieee && top) {
    return mantissa != 0 ? kRealNan : negative ? -kRealInfinity : kRealInfinity;
  }
  const Real unit = std::ldexp(Real{1}, -f.mantissa_bits);
  const Real magnitude = exponent == 0 ? std::ldexp(mantissa * unit, 1 - f.bias)
                                       : std::ldexp(1 + mantissa * unit, exponent - f.bias);
  return negative ? -magnitude : magnitude;
}

/// The largest finite number.
inline Real largest(const Format& f) {
  const uint64_t all_ones = f.sign() - 1;
  const uint64_t code = f.specials == Format::ieee ? all_ones - (uint64_t{1} << f.mantissa_bits)
                        : f.specials == Format::nan_only ? all_ones - 1
                                                         : all_ones;
  return decode(code, f);
}

/// The distance of the format's numbers around magnitude x.
inline Real step_at(Real x, const Format& f) {
  int exponent = 0;
  std::frexp(x, &exponent);
  const int least = 1 - f.bias;
  return std::ldexp(Real{1},
                    (x == 0 || exponent - 1 < least ? least : exponent - 1) - f.mantissa_bits);
}

enum class Round { even, up, down, zero };

/// x rounded to a multiple of `step`.
inline Real round_to(Real x, Real step, Round mode) {
  const Real units = x / step;
  const Real below = std::floor(units);
  const Real rest = units - below;
  switch (mode) {
    case Round::up:
      return rest == 0 ? x : (below + 1) * step;
    case Round::down:
      return below * step;
    case Round::zero:
      return x < 0 && rest != 0 ? (below + 1) * step : below * step;
    default:
      const bool odd = std::fmod(below, Real{2}) != 0;
      return (rest > 0.5L || (rest == 0.5L && odd) ? below + 1 : below) * step;
  }
}

/// The code of a number that the format has, with this sign.
inline uint64_t code_of(Real x, bool negative, const Format& f) {
  const Real magnitude = std::fabs(x);
  const Real step = step_at(magnitude, f);
  // Codes of positive numbers count upwards in steps.
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int least = 1 - f.bias;
  const int clamped = magnitude == 0 || exponent - 1 < least ? least : exponent - 1;
  const auto code = static_cast<uint64_t>(magnitude / step) +
                    (static_cast<uint64_t>(clamped - least) << f.mantissa_bits);
  return code | (negative ? f.sign() : 0);
}

}  // namespace weft::sim::test
