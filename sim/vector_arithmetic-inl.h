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

/// The smaller (kMax: larger) of two; -0 is less than +0; of a NaN and a number, the number, but
/// under MODE.IEEE a signalling NaN comes back quiet.
template <bool kMax, bool kIeee, class T>
T extreme(T a, T b) {
  using U = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  using S = std::make_signed_t<U>;
  constexpr int kSign = 8 * sizeof(T) - 1;
  constexpr U kQuiet = U{1} << (std::numeric_limits<T>::digits - 2);
  const U ua = std::bit_cast<U>(a);
  const U ub = std::bit_cast<U>(b);
  // Numbers in their order, as integers.
  const auto place = [](U u) {
    return static_cast<S>(u ^ (static_cast<U>(static_cast<S>(u) >> kSign) >> 1));
  };
  U result = (kMax ? place(ua) > place(ub) : place(ua) < place(ub)) ? ua : ub;
  const bool a_is_nan = a != a;
  const bool b_is_nan = b != b;
  result = b_is_nan ? ua : result;
  result = a_is_nan ? ub : result;
  if constexpr (kIeee) {
    const bool a_signals = a_is_nan & ((ua & kQuiet) == 0);
    const bool b_signals = b_is_nan & ((ub & kQuiet) == 0);
    result = b_signals ? ub | kQuiet : result;
    result = (a_signals | (a_is_nan & b_is_nan)) ? ua | kQuiet : result;
  }
  return std::bit_cast<T>(result);
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
/// F where MODE may say that denormals are 0: FloatMode has told the host, whose product by 1
/// obeys.
template <class F>
struct Flushed {
  template <class... T>
  auto operator()(T... x) const {
    const auto result = F{}(x...);
    std::remove_const_t<decltype(result)> one = 1;
    asm("" : "+x"(one));  // or the compiler leaves the product out
    return result * one;
  }
};

/// Runs one of two functions, each by a Run<Signature, Function>, by MODE.IEEE.
template <template <class, class> class Run, class Signature, class Ieee, class Other>
struct ByIeee {
  static void run(Wave& w, const Instruction& i) {
    const bool ieee = (w.mode >> 9 & 1) != 0;
    if (w.special_float) [[unlikely]] {
      (ieee ? Run<Signature, Flushed<Ieee>>::run : Run<Signature, Flushed<Other>>::run)(w, i);
    } else if (ieee) {
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
