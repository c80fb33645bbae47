// Arithmetic that single and packed instructions share. Included inside foreach_isa.h only.
#include "sim/vector-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

template <class T>
T fused(T a, T b, T c) {
  if constexpr (sizeof(T) == 4) {
    return __builtin_fmaf(a, b, c);
  } else {
    return __builtin_fma(a, b, c);
  }
}

/// a * b + c of three binary16 values, rounded to odd in float, so that the one rounding to
/// binary16 that follows is right in every direction.
inline float fused_half(float a, float b, float c) {
  const double product = static_cast<double>(a) * b;  // exact: 22 bits
  const double sum = product + c;
  const double of_c = sum - product;
  const double error = (product - (sum - of_c)) + (c - of_c);
  auto bits = std::bit_cast<uint64_t>(sum);
  if (error != 0 && (bits & 1) == 0 && sum - sum == 0) {
    bits += (error > 0) == (sum > 0) ? 1 : -1;
  }
  const double odd = std::bit_cast<double>(bits);
  const auto rounded = static_cast<float>(odd);
  auto result = std::bit_cast<uint32_t>(rounded);
  if (static_cast<double>(rounded) != odd && odd == odd) {
    const bool beyond = __builtin_fabs(static_cast<double>(rounded)) > __builtin_fabs(odd);
    result = (result - (beyond ? 1 : 0)) | 1;
  }
  return std::bit_cast<float>(result);
}

template <class T>
bool is_signaling(T x) {
  if constexpr (sizeof(T) == 4) {
    return x != x && (std::bit_cast<uint32_t>(x) & 0x400000) == 0;
  } else {
    return x != x && (std::bit_cast<uint64_t>(x) & 0x8000000000000) == 0;
  }
}

/// The smaller (kMax: larger) of two; -0 is less than +0; of a NaN and a number, the number, but
/// under MODE.IEEE a signalling NaN comes back quiet.
template <bool kMax, bool kIeee, class T>
T extreme(T a, T b) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const U ua = std::bit_cast<U>(a);
  const U ub = std::bit_cast<U>(b);
  const T zero_aware = std::bit_cast<T>(kMax ? (ua & ub) : (ua | ub));  // equal: signs may differ
  T result = a == b ? zero_aware : (kMax ? a > b : a < b) ? a : b;
  result = b != b ? a : result;
  result = a != a ? b : result;
  if constexpr (kIeee) {
    result = is_signaling(b) ? b + b : result;
    result = is_signaling(a) ? a + a : result;
    result = a != a && b != b ? a + b : result;
  }
  return result;
}
template <bool kMax, bool kIeee, class T>
T extreme3(T a, T b, T c) {
  return extreme<kMax, kIeee>(extreme<kMax, kIeee>(a, b), c);
}
template <bool kIeee, class T>
T median(T a, T b, T c) {
  const T most = extreme3<true, kIeee>(a, b, c);
  const T rest = most == a   ? extreme<true, kIeee>(b, c)
                 : most == b ? extreme<true, kIeee>(a, c)
                             : extreme<true, kIeee>(a, b);
  return a != a || b != b || c != c ? extreme3<false, kIeee>(a, b, c) : rest;
}
/// Runs one of two functions, each by a Run<Signature, Function>, by MODE.IEEE.
template <template <class, class> class Run, class Signature, class Ieee, class Other>
struct ByIeee {
  static void run(Wave& w, const Instruction& i) {
    if ((w.mode >> 9 & 1) != 0) {
      Run<Signature, Ieee>::run(w, i);
    } else {
      Run<Signature, Other>::run(w, i);
    }
  }
};
/// Those two: functions of kIeee.
#ifndef WEFT_IEEE
#define WEFT_IEEE(...)                \
  [](auto... x) {                     \
    constexpr bool kIeee = true;      \
    return __VA_ARGS__(x...);         \
  },                                  \
      [](auto... x) {                 \
        constexpr bool kIeee = false; \
        return __VA_ARGS__(x...);     \
      }
#endif

/// gfx950's minimum and maximum: a NaN input is the result.
template <bool kMax, class T>
T extreme_nan(T a, T b) {
  return a != a ? a + a : b != b ? b + b : extreme<kMax, false>(a, b);
}

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
