// The floating-point formats of PTX that C++ does not have.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/fp8.h"
#include "base/number.h"

namespace weft::ptx {

/// What .ftz makes of x: a subnormal number is a zero of its sign.
inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

/// a b + c with the last bit set where it is not exact: rounding that to fewer than 52 bits is
/// rounding the exact sum. a b is exact (two halves).
inline double fused_to_odd(double a, double b, double c) {
  const double p = a * b;
  const double sum = p + c;
  if (!std::isfinite(sum)) {
    return sum;
  }
  const double v = sum - p;
  const double error = (p - (sum - v)) + (c - v);
  auto bits = std::bit_cast<uint64_t>(sum);
  if (error == 0 || (bits & 1) != 0) {
    return sum;
  }
  // Towards the exact sum, which lies beside an even number: the odd one there.
  bits += (error > 0) == (sum > 0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

/// x as an f32 whose last bit is set where it is not exact, so that it rounds to a shorter format
/// as x does.
inline float to_odd(double x) {
  const auto near = static_cast<float>(x);
  if (double{near} == x || !std::isfinite(near)) {
    return std::isfinite(x) && !std::isfinite(near)
               ? std::copysign(std::bit_cast<float>(0x7f7fffffu), near)
               : near;
  }
  auto bits = std::bit_cast<uint32_t>(near);
  if ((bits & 1) == 0) {
    if (bits << 1 == 0) {
      return std::copysign(std::bit_cast<float>(1u), static_cast<float>(x > 0 ? 1 : -1));
    }
    bits += (std::fabs(x) > std::fabs(double{near})) ? 1 : -1;
  }
  return std::bit_cast<float>(bits);
}

struct F16 {
  static double widen(uint16_t bits) { return to_float(f16{bits}); }
  static uint16_t round(double x) { return x != x ? 0x7fff : to_f16(to_odd(x)).bits; }
};
struct BF16 {
  static double widen(uint16_t bits) { return to_float(bf16{bits}); }
  static uint16_t round(double x) { return x != x ? 0x7fff : to_bf16(to_odd(x)).bits; }
};

}  // namespace weft::ptx
