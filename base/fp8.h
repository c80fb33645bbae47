// Number formats of eight bits and fewer: what weights and activations are quantised to. Sources:
// OCP 8-bit Floating Point Specification 1.0 (e4m3fn, e5m2); the AMD Instinct MI300 instruction set
// manual, section 7.2 (the fnuz formats of gfx942: bias one higher, no negative zero, whose code is
// the only NaN); OCP Microscaling Formats 1.0 (e3m2, e2m3, e2m1, e8m0).
#pragma once

#include <bit>
#include <cstdint>

#include "base/number.h"

namespace weft {

/// What codes of a small format stand for something else than a number.
enum class Specials : uint8_t {
  ieee,   ///< the highest exponent: infinities and NaNs
  fn,     ///< all ones but the sign: NaN; no infinities
  fnuz,   ///< the code of negative zero: NaN; no infinities, one zero
  finite  ///< none
};

/// A sign, exponent and mantissa in the low bits of a byte.
template <int kExponent, int kMantissa, int kBias, Specials kSpecials>
struct SmallFloat {
  uint8_t bits = 0;

  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kCodeBits = 1 + kExponent + kMantissa;
  static constexpr uint8_t kSign = 1 << (kExponent + kMantissa);
  static constexpr bool kHasNan = kSpecials != Specials::finite;
  static constexpr uint8_t kNan = kSpecials == Specials::fnuz ? kSign : kSign - 1;
  /// The code of the largest finite number.
  static constexpr uint8_t kMaxCode = kSpecials == Specials::ieee ? kSign - 1 - (1 << kMantissa)
                                      : kSpecials == Specials::fn ? kSign - 2
                                                                  : kSign - 1;
  /// The exponent of the smallest normal number.
  static constexpr int kLeastExponent = 1 - kBias;

  friend constexpr bool operator==(SmallFloat, SmallFloat) = default;
};

using e4m3fn = SmallFloat<4, 3, 7, Specials::fn>;       ///< to 448
using e4m3fnuz = SmallFloat<4, 3, 8, Specials::fnuz>;   ///< to 240
using e5m2 = SmallFloat<5, 2, 15, Specials::ieee>;      ///< to 57344
using e5m2fnuz = SmallFloat<5, 2, 16, Specials::fnuz>;  ///< to 57344
using e3m2 = SmallFloat<3, 2, 3, Specials::finite>;     ///< to 28, in the low 6 bits
using e2m3 = SmallFloat<2, 3, 1, Specials::finite>;     ///< to 7.5, in the low 6 bits
using e2m1 = SmallFloat<2, 1, 1, Specials::finite>;     ///< to 6, in the low 4 bits

/// 2^(bits - 127), the scale of a block in the microscaling formats; 255 is NaN.
struct e8m0 {
  uint8_t bits = 0;

  friend constexpr bool operator==(e8m0, e8m0) = default;
};

static_assert(sizeof(e4m3fn) == 1 && sizeof(e8m0) == 1, "laid over bytes of tensors");

namespace detail {
/// 2^e, for e of a normal number.
constexpr float power_of_two(int e) {
  return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
}
inline constexpr float kQuietNan = std::bit_cast<float>(0x7fc00000U);
inline constexpr float kInfinity = std::bit_cast<float>(0x7f800000U);
}  // namespace detail

/// Exactly.
template <int E, int M, int B, Specials S>
constexpr float to_float(SmallFloat<E, M, B, S> x) {
  using F = SmallFloat<E, M, B, S>;
  const uint8_t magnitude = x.bits & (F::kSign - 1);
  const bool negative = (x.bits & F::kSign) != 0;
  float value = 0;
  if (S == Specials::fnuz ? x.bits == F::kNan : F::kHasNan && magnitude > F::kMaxCode) {
    const bool infinite = S == Specials::ieee && magnitude == F::kMaxCode + 1;
    value = infinite ? detail::kInfinity : detail::kQuietNan;
  } else {
    const int exponent = magnitude >> M;
    const int mantissa = magnitude & ((1 << M) - 1);
    const int least = F::kLeastExponent - M;  // the exponent of the smallest number
    value = exponent == 0 ? static_cast<float>(mantissa) * detail::power_of_two(least)
                          : static_cast<float>(mantissa + (1 << M)) *
                                detail::power_of_two(least + exponent - 1);
  }
  return negative && value == value ? -value : value;
}

constexpr float to_float(e8m0 x) {
  return x.bits == 255 ? detail::kQuietNan
         : x.bits == 0 ? 0x1p-127f
                       : std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 23);
}

/// The largest finite number of a format.
template <class F>
inline constexpr float kMax = to_float(F{F::kMaxCode});

/// Rounds to nearest, ties to even, and saturates: what is beyond the largest finite number, an
/// infinity included, becomes that number. NaN stays NaN; where the format has none it becomes the
/// largest number (as `v_cvt_scalef32_pk_fp4_f32` and `cvt.rn.satfinite.e2m1x2` do).
template <class F>
constexpr F saturate_to(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return {F::kHasNan ? F::kNan : F::kMaxCode};
  }
  const uint8_t sign = (u >> 31) != 0 ? F::kSign : 0;
  const float positive = std::bit_cast<float>(magnitude);
  if (positive >= kMax<F>) {
    return {static_cast<uint8_t>(sign | F::kMaxCode)};
  }
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const int clamped = exponent < F::kLeastExponent ? F::kLeastExponent : exponent;
  // In units of the last place, rounded by the addition; a carry goes on into the exponent.
  const float units = positive * detail::power_of_two(F::kMantissaBits - clamped);
  const auto rounded = static_cast<int>((units + 0x1p23f) - 0x1p23f);
  const int code = ((clamped - F::kLeastExponent) << F::kMantissaBits) + rounded;
  const bool positive_zero = code == 0 && F::kNan == F::kSign;  // fnuz has no other
  return {static_cast<uint8_t>(code > F::kMaxCode ? sign | F::kMaxCode
                               : positive_zero    ? 0
                                                  : sign | code)};
}

/// The power of two next below x (or x itself), as block scales are chosen (OCP MX 1.0, section
/// 6.3): saturates at 2^-127 and 2^127; NaN and infinity become NaN. x >= 0.
constexpr e8m0 floor_to_e8m0(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x) & 0x7fffffff;
  return {static_cast<uint8_t>(u >= 0x7f800000 ? 255 : u >> 23)};
}

template <>
struct DTypeOf<e4m3fn> {
  static constexpr DType value = DType::e4m3fn;
};
template <>
struct DTypeOf<e4m3fnuz> {
  static constexpr DType value = DType::e4m3fnuz;
};

}  // namespace weft
