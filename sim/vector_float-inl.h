// Floating-point arithmetic: one row for each instruction. Included inside foreach_isa.h only.
#include "sim/vector_arithmetic-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

template <class Signature, class Ieee, class Other>
constexpr Row by_ieee(std::string_view name, Ieee, Other) {
  return Types<Signature>::fill({.name = name,
                                 .run = &ByIeee<Elementwise, Signature, Ieee, Other>::run,
                                 .flags = kFloatResult});
}

constexpr float flush(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000) == 0
             ? std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x80000000)
             : x;
}

/// A float to the nearest binary16 and back: what lies between the product and the sum of
/// v_mad_f16.
inline float half_rounded(float x) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph(_mm_set_ss(x), _MM_FROUND_TO_NEAREST_INT)));
}

/// The polynomial of these coefficients, the constant first. Pairs of terms, then pairs of those: a
/// lane's additions wait for four others, not for all.
template <size_t kTerms>
[[gnu::always_inline]] inline double polynomial(const double (&c)[kTerms], double x) {
  static_assert(kTerms > 8 && kTerms <= 16);
  const double x2 = x * x;
  const double x4 = x2 * x2;
  const auto pair = [&](size_t k) {
    return k + 1 < kTerms ? __builtin_fma(c[k + 1], x, c[k]) : k < kTerms ? c[k] : 0.0;
  };
  const auto four = [&](size_t k) { return __builtin_fma(pair(k + 2), x2, pair(k)); };
  const double low = __builtin_fma(four(4), x4, four(0));
  const double high = kTerms > 12 ? __builtin_fma(four(12), x4, four(8)) : four(8);
  return __builtin_fma(high, x4 * x4, low);
}

/// 2^x for |x| < 1020, to about 1e-14.
inline double exp2_double(double x) {
  static constexpr double kInverseFactorials[] = {
      1.0,       1.0,        0.5,         1.0 / 6,      1.0 / 24,      1.0 / 120,
      1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800};
  const double n = __builtin_rint(x);
  const double p = polynomial(kInverseFactorials, (x - n) * 0.693147180559945309417);
  const auto exponent = static_cast<int32_t>(n) + 1023;
  return p * std::bit_cast<double>(static_cast<int64_t>(exponent) << 52);
}
inline float exp2_float(float x) {
  const float bounded = x > 300.0F ? 300.0F : x < -300.0F ? -300.0F : x;  // NaN stays
  const auto result = static_cast<float>(exp2_double(bounded == bounded ? bounded : 0.0F));
  return x != x ? x + x : result;
}
/// log2 of a positive normal double, to about 1e-15.
inline double log2_double(double x) {
  const auto bits = std::bit_cast<int64_t>(x);
  const int64_t shifted = bits - 0x3fe6a09e667f3bcd;  // of sqrt(0.5): mantissa in [0.7, 1.4)
  const auto exponent = static_cast<int32_t>(shifted >> 52);
  const double m = std::bit_cast<double>(bits - (static_cast<int64_t>(exponent) << 52));
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  static constexpr double kOdd[] = {1.0,      1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9, 1.0 / 11,
                                    1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  return 2.88539008177792681472 * s * polynomial(kOdd, z) + exponent;
}
inline float log2_float(float x) {
  const auto y = static_cast<float>(log2_double(x > 0 && x < INFINITY ? x : 1.0F));
  return x == 0 ? -INFINITY : x < 0 ? NAN : x < INFINITY ? y : x;  // +inf and NaN are themselves
}

/// Sine of x turns, and cosine, over the whole range; NaN for infinities. What is left of x without
/// its whole turns is exact.
inline float sin_turns(float x) {
  const double turns = x - __builtin_trunc(static_cast<double>(x));
  return x == 0 ? x : static_cast<float>(__builtin_sin(turns * 6.283185307179586476925));
}
inline float cos_turns(float x) {
  const double turns = x - __builtin_trunc(static_cast<double>(x));
  return static_cast<float>(__builtin_cos(turns * 6.283185307179586476925));
}

template <class T>
T fraction(T x) {
  constexpr T kBelowOne = sizeof(T) == 4 ? T(0x1.fffffep-1) : T(0x1.fffffffffffffp-1);
  T floor;
  if constexpr (sizeof(T) == 4) {
    floor = __builtin_floorf(x);
  } else {
    floor = __builtin_floor(x);
  }
  const T f = x - floor;
  return f > kBelowOne ? kBelowOne : f;
}

inline int exponent_of(float x) { return static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255); }
inline int exponent_of(double x) {
  return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 2047);
}
template <class T>
bool is_denormal(T x) {
  return exponent_of(x) == 0 && x != 0;
}
template <class T>
T scaled(T x, int exponent) {
  if constexpr (sizeof(T) == 4) {
    // Exact in double, and rounded once.
    const int bounded = exponent < -300 ? -300 : exponent > 300 ? 300 : exponent;
    const auto factor = std::bit_cast<double>(static_cast<int64_t>(bounded + 1023) << 52);
    return static_cast<float>(double{x} * factor);
  } else {
    return __builtin_ldexp(x, exponent);
  }
}
/// frexp with the manuals' answers for infinities and NaN.
template <class T>
T mantissa(T x) {
  int e = 0;
  if (x - x != 0) {
    return x;
  }
  if constexpr (sizeof(T) == 4) {
    return __builtin_frexpf(x, &e);
  } else {
    return __builtin_frexp(x, &e);
  }
}
template <class T>
int frexp_exponent(T x) {
  int e = 0;
  if (x - x != 0) {
    return 0;
  }
  if constexpr (sizeof(T) == 4) {
    (void)__builtin_frexpf(x, &e);
  } else {
    (void)__builtin_frexp(x, &e);
  }
  return e;
}

/// Without branches, so that lanes are vectors.
template <class T>
T div_fixup(T q, T denominator, T numerator) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int kDigits = std::numeric_limits<T>::digits - 1;
  constexpr int kTiny = sizeof(T) == 4 ? -150 : -1075;
  constexpr Bits kInfinity = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
  constexpr Bits kSign = ~(~Bits{0} >> 1);
  constexpr Bits kQuiet = Bits{1} << (kDigits - 1);
  const auto a = std::bit_cast<Bits>(denominator);
  const auto b = std::bit_cast<Bits>(numerator);
  const Bits a_size = a & ~kSign;
  const Bits b_size = b & ~kSign;
  const Bits q_size = std::bit_cast<Bits>(q) & ~kSign;
  // A quotient that overflowed on the way here became NaN: the macro relies on infinity.
  Bits size = q_size > kInfinity ? kInfinity : q_size;
  // The manual's UNDERFLOW.
  size =
      static_cast<int>(b_size >> kDigits) - static_cast<int>(a_size >> kDigits) < kTiny ? 0 : size;
  const bool vanishes = (a_size == kInfinity) | (b_size == 0);
  const bool overflows = (a_size == 0) | (b_size == kInfinity);
  size = overflows ? kInfinity : vanishes ? 0 : size;
  Bits result = size | ((a ^ b) & kSign);
  result = overflows & vanishes ? kSign | kInfinity | kQuiet : result;
  result = a_size > kInfinity ? a | kQuiet : result;
  result = b_size > kInfinity ? b | kQuiet : result;
  return std::bit_cast<T>(result);
}

/// Whether a quotient's operands may be such that v_div_scale changes them, in some lane.
template <class S>
bool needs_scaling(const uint32_t* denominator, const uint32_t* numerator) {
  constexpr bool kSingle = sizeof(typename S::T) == 4;
  constexpr int kMost = kSingle ? 250 : 2042;
  constexpr int kLeast = kSingle ? 24 : 54;
  constexpr int kApart = kSingle ? 96 : 768;
  const uint32_t* high_a = denominator + (S::kWords - 1) * kLanes;
  const uint32_t* high_b = numerator + (S::kWords - 1) * kLanes;
  constexpr int kShift = kSingle ? 23 : 20;
  constexpr int kMask = kSingle ? 255 : 2047;
  int unusual = 0;
  WEFT_SIM_LANES {
    const int a = static_cast<int>(high_a[l] >> kShift) & kMask;
    const int b = static_cast<int>(high_b[l] >> kShift) & kMask;
    // (Two infinities or NaN stay what they are: rows that a program does not have come out as
    // these.)
    const int numbers = static_cast<int>(a != kMask) | static_cast<int>(b != kMask);
    unusual |= numbers & (static_cast<int>(a < 1) | static_cast<int>(a > kMost) |
                          static_cast<int>(b < kLeast) | static_cast<int>(b == kMask) |
                          static_cast<int>(b - a >= kApart) | static_cast<int>(a - b >= kApart));
  }
  return unusual != 0;
}

/// v_div_scale of every lane: the scaled operand, and in the result's bits which lanes
/// v_div_fmas must undo. `p`: the operand, the denominator, the numerator.
template <class S>
uint64_t scale_lanes(const uint32_t* const* p, uint32_t* out) {
  using T = typename S::T;
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr int kStep = kSingle ? 64 : 128;
  uint64_t vcc = 0;
  for (int l = 0; l < kLanes; ++l) {
    const T x = S::get(p[0], l);
    const T a = S::get(p[1], l);  // denominator
    const T b = S::get(p[2], l);  // numerator
    T result = x;
    const bool tiny_inverse = is_denormal(static_cast<T>(T(1) / a));
    const bool tiny_quotient = is_denormal(static_cast<T>(b / a));
    bool post = false;
    if (a == 0 || b == 0) {
      result = std::numeric_limits<T>::quiet_NaN();
    } else if (exponent_of(b) - exponent_of(a) >= (kSingle ? 96 : 768)) {
      post = true;
      result = x == a ? scaled(x, kStep) : x;
    } else if (is_denormal(a)) {
      result = scaled(x, kStep);
    } else if (tiny_inverse && tiny_quotient) {
      // The manuals scale the denominator up here, to infinity; down is what the macro needs.
      post = true;
      result = x == a ? scaled(x, -kStep) : x;
    } else if (tiny_inverse) {
      result = scaled(x, -kStep);
    } else if (tiny_quotient) {
      post = true;
      result = x == b ? scaled(x, kStep) : x;
    } else if (exponent_of(b) <= (kSingle ? 23 : 53)) {
      result = scaled(x, kStep);
    }
    vcc |= static_cast<uint64_t>(post) << l;
    S::put(out, l, result);
  }
  return vcc;
}

template <class S>
void div_scale(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t out[2 * kLanes];
  const uint32_t* p[3];
  for (int k = 0; k < 3; ++k) {
    p[k] = source(w, i, 2 + k, tmp[k], S::kWords, S::kType);
  }
  uint64_t vcc = 0;
  if (!needs_scaling<S>(p[1], p[2])) [[likely]] {
    std::memcpy(out, p[0], sizeof(uint32_t) * kLanes * S::kWords);
  } else {
    vcc = scale_lanes<S>(p, out);
  }
  const uint64_t exec = w.exec();
  blend(w.lanes(i.operand[0].index), out, exec, S::kWords);
  w.write64(i.operand[1], vcc & exec);
}

/// Wide enough for a quotient before its one rounding.
__extension__ using Quad = __float128;

/// The manual scales by 2^32 always; that would make every division that needs it wrong. What
/// undoes v_div_scale is this: 2^64 (binary64: 2^128) up or down, by the size of the third operand.
template <class S>
void div_fmas(Wave& w, const Instruction& i) {
  using T = typename S::T;
  constexpr int kStep = sizeof(T) == 4 ? 64 : 128;
  constexpr int kBias = sizeof(T) == 4 ? 127 : 1023;
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t out[2 * kLanes];
  const uint32_t* p[3];
  for (int k = 0; k < 3; ++k) {
    p[k] = source(w, i, 1 + k, tmp[k], S::kWords, S::kType);
  }
  WEFT_SIM_LANES { S::put(out, l, fused(S::get(p[0], l), S::get(p[1], l), S::get(p[2], l))); }
  for (uint64_t rest = w.vcc(); rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const T c = S::get(p[2], l);
    const int scale = exponent_of(c) > kBias ? kStep : -kStep;
    T result = scaled(S::get(out, l), scale);
    if (is_denormal(result)) {  // rounds once: the quotient is IEEE's
      result = static_cast<T>((Quad{S::get(p[0], l)} * S::get(p[1], l) + c) *
                              static_cast<Quad>(scaled(T(1), scale)));
    }
    S::put(out, l, result);
  }
  finish<S>(w, i, out);
}

/// An exponent is an integer that is encoded as a binary16: an inline 1.0 is that number's bits.
template <class F>
constexpr Row half_exponent_row(std::string_view name, F f) {
  Row made = row<F16(F16, I16)>(name, f);
  made.types[2] = Type::f16;
  return made;
}

constexpr Row div_row(std::string_view name, Execute run, Type type, int results) {
  Row row{.name = name,
          .run = run,
          .results = static_cast<uint8_t>(results),
          .types = {type, type, type, type, Type::none, Type::none},
          .flags = kFloatResult};
  if (results == 2) {
    row.types[1] = Type::b64;
    row.types[4] = type;
  }
  return row;
}

// --- the table ----------------------------------------------------------------------------------

/// Which axis a cube map's direction lies along, and how: z wins a tie, then y.
struct CubeFace {
  int axis;  ///< 0: x, 1: y, 2: z
  bool negative;

  CubeFace(float x, float y, float z) {
    const float ax = __builtin_fabsf(x);
    const float ay = __builtin_fabsf(y);
    const float az = __builtin_fabsf(z);
    axis = az >= ax && az >= ay ? 2 : ay >= ax ? 1 : 0;
    negative = (axis == 2 ? z : axis == 1 ? y : x) < 0;
  }
};

/// 2 / pi: the bits after the point, highest first, of which the manual takes 1201.
inline constexpr uint64_t kTwoOverPi[] = {
    0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484,
    0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f,
    0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d, 0x7527bac7ebe5f17b,
    0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab};

/// 53 bits of 2 / pi as a double: those that an argument of this exponent needs, `segment` times
/// 53 further on.
inline double two_over_pi(double x, uint32_t segment) {
  const auto exponent = static_cast<int>(std::bit_cast<uint64_t>(x) >> 52 & 0x7ff);
  int shift = static_cast<int>(segment & 31) * 53;
  shift += exponent > 1077 ? exponent - 1077 : 0;
  uint64_t bits = 0;
  for (int k = 0; k < 53; ++k) {
    const int at = shift + k;  // bits beyond the table are zeros
    const uint64_t bit = at < 1201 ? kTwoOverPi[at / 64] >> (63 - at % 64) & 1 : 0;
    bits = bits << 1 | bit;
  }
  const int scale = -53 - shift + (exponent >= 1968 ? 128 : 0);
  return scaled(static_cast<double>(bits), scale);
}

constexpr Row kFloatRows[] = {
    // binary32
    row<F32(F32, F32)>("v_add_f32", [](float a, float b) { return a + b; }),
    row<F32(F32, F32)>("v_sub_f32", [](float a, float b) { return a - b; }),
    row<F32(F32, F32)>("v_subrev_f32", [](float a, float b) { return b - a; }),
    row<F32(F32, F32)>("v_mul_f32", [](float a, float b) { return a * b; }),
    row<F32(F32, F32)>("v_mul_legacy_f32",
                       [](float a, float b) { return a == 0 || b == 0 ? 0.0F : a * b; }),
    row<F32(F32, F32, F32)>("v_fma_f32",
                            [](float a, float b, float c) { return fused(a, b, c); }),
    row<F32(F32, F32, F32)>("v_fmamk_f32",
                            [](float a, float k, float c) { return fused(a, k, c); }),
    row<F32(F32, F32, F32)>("v_fmaak_f32",
                            [](float a, float b, float k) { return fused(a, b, k); }),
    accumulate<F32(F32, F32)>("v_fmac_f32",
                              [](float a, float b, float c) { return fused(a, b, c); }),
    by_ieee<F32(F32, F32)>("v_min_f32", WEFT_IEEE(extreme<false, kIeee>)),
    by_ieee<F32(F32, F32)>("v_max_f32", WEFT_IEEE(extreme<true, kIeee>)),
    by_ieee<F32(F32, F32, F32)>("v_min3_f32", WEFT_IEEE(extreme3<false, kIeee>)),
    by_ieee<F32(F32, F32, F32)>("v_max3_f32", WEFT_IEEE(extreme3<true, kIeee>)),
    by_ieee<F32(F32, F32, F32)>("v_med3_f32", WEFT_IEEE(median<kIeee>)),
    row<F32(F32, F32, F32)>(
        "v_minimum3_f32",
        [](float a, float b, float c) { return extreme_nan<false>(extreme_nan<false>(a, b), c); },
        kOnlyGfx950),
    row<F32(F32, F32, F32)>(
        "v_maximum3_f32",
        [](float a, float b, float c) { return extreme_nan<true>(extreme_nan<true>(a, b), c); },
        kOnlyGfx950),
    row<F32(F32)>("v_fract_f32", [](float x) { return fraction(x); }),
    row<F32(F32)>("v_trunc_f32", [](float x) { return __builtin_truncf(x); }),
    row<F32(F32)>("v_ceil_f32", [](float x) { return __builtin_ceilf(x); }),
    row<F32(F32)>("v_floor_f32", [](float x) { return __builtin_floorf(x); }),
    row<F32(F32)>("v_rndne_f32", [](float x) { return __builtin_roundevenf(x); }),
    slow<F32(F32)>("v_exp_f32", [](float x) { return flush(exp2_float(flush(x))); }),
    slow<F32(F32)>("v_log_f32", [](float x) { return flush(log2_float(flush(x))); }),
    slow<F32(F32)>("v_exp_legacy_f32", [](float x) { return flush(exp2_float(flush(x))); }),
    slow<F32(F32)>("v_log_legacy_f32", [](float x) { return flush(log2_float(flush(x))); }),
    slow<F32(F32)>("v_rcp_f32", [](float x) { return flush(1.0F / flush(x)); }),
    slow<F32(F32)>("v_rcp_iflag_f32", [](float x) { return flush(1.0F / flush(x)); }),
    slow<F32(F32)>("v_rsq_f32",
                   [](float x) {
                     return static_cast<float>(1.0 / __builtin_sqrt(double{flush(x)}));
                   }),
    slow<F32(F32)>("v_sqrt_f32", [](float x) { return __builtin_sqrtf(flush(x)); }),
    slow<F32(F32)>("v_sin_f32", [](float x) { return sin_turns(x); }),
    slow<F32(F32)>("v_cos_f32", [](float x) { return cos_turns(x); }),
    row<F32(F32, I32)>("v_ldexp_f32", [](float x, int32_t e) { return scaled(x, e); }),
    row<I32(F32)>("v_frexp_exp_i32_f32", [](float x) { return frexp_exponent(x); }),
    row<F32(F32)>("v_frexp_mant_f32", [](float x) { return mantissa(x); }),
    row<F32(F32, F32, F32)>("v_div_fixup_f32",
                            [](float q, float a, float b) { return div_fixup(q, a, b); }),
    row<F32(F32, F32, F32)>("v_cubeid_f32",
                            [](float x, float y, float z) {
                              const CubeFace face(x, y, z);
                              return static_cast<float>(2 * face.axis + (face.negative ? 1 : 0));
                            }),
    row<F32(F32, F32, F32)>("v_cubema_f32",
                            [](float x, float y, float z) {
                              const int axis = CubeFace(x, y, z).axis;
                              return 2.0F * (axis == 2 ? z : axis == 1 ? y : x);
                            }),
    row<F32(F32, F32, F32)>("v_cubesc_f32",
                            [](float x, float y, float z) {
                              const CubeFace face(x, y, z);
                              const float along = face.axis == 0 ? -z : x;
                              return face.axis != 1 && face.negative ? -along : along;
                            }),
    row<F32(F32, F32, F32)>("v_cubetc_f32",
                            [](float x, float y, float z) {
                              const CubeFace face(x, y, z);
                              return face.axis != 1 ? -y : face.negative ? -z : z;
                            }),
    div_row("v_div_scale_f32", &div_scale<F32>, Type::f32, 2),
    div_row("v_div_fmas_f32", &div_fmas<F32>, Type::f32, 1),

    // binary64
    row<F64(F64, F64)>("v_add_f64", [](double a, double b) { return a + b; }),
    row<F64(F64, F64)>("v_mul_f64", [](double a, double b) { return a * b; }),
    row<F64(F64, F64, F64)>("v_fma_f64",
                            [](double a, double b, double c) { return fused(a, b, c); }),
    accumulate<F64(F64, F64)>("v_fmac_f64",
                              [](double a, double b, double c) { return fused(a, b, c); }),
    by_ieee<F64(F64, F64)>("v_min_f64", WEFT_IEEE(extreme<false, kIeee>)),
    by_ieee<F64(F64, F64)>("v_max_f64", WEFT_IEEE(extreme<true, kIeee>)),
    row<F64(F64)>("v_fract_f64", [](double x) { return fraction(x); }),
    row<F64(F64)>("v_trunc_f64", [](double x) { return __builtin_trunc(x); }),
    row<F64(F64)>("v_ceil_f64", [](double x) { return __builtin_ceil(x); }),
    row<F64(F64)>("v_floor_f64", [](double x) { return __builtin_floor(x); }),
    row<F64(F64)>("v_rndne_f64", [](double x) { return __builtin_roundeven(x); }),
    slow<F64(F64)>("v_rcp_f64", [](double x) { return 1.0 / x; }),
    slow<F64(F64)>("v_rsq_f64", [](double x) { return 1.0 / __builtin_sqrt(x); }),
    slow<F64(F64)>("v_sqrt_f64", [](double x) { return __builtin_sqrt(x); }),
    row<F64(F64, I32)>("v_ldexp_f64", [](double x, int32_t e) { return scaled(x, e); }),
    row<I32(F64)>("v_frexp_exp_i32_f64", [](double x) { return frexp_exponent(x); }),
    row<F64(F64, U32)>("v_trig_preop_f64",
                       [](double x, uint32_t segment) { return two_over_pi(x, segment); }),
    row<F64(F64)>("v_frexp_mant_f64", [](double x) { return mantissa(x); }),
    row<F64(F64, F64, F64)>("v_div_fixup_f64",
                            [](double q, double a, double b) { return div_fixup(q, a, b); }),
    div_row("v_div_scale_f64", &div_scale<F64>, Type::f64, 2),
    div_row("v_div_fmas_f64", &div_fmas<F64>, Type::f64, 1),

    // binary16
    row<F16(F16, F16)>("v_add_f16", [](float a, float b) { return a + b; }),
    row<F16(F16, F16)>("v_sub_f16", [](float a, float b) { return a - b; }),
    row<F16(F16, F16)>("v_subrev_f16", [](float a, float b) { return b - a; }),
    row<F16(F16, F16)>("v_mul_f16", [](float a, float b) { return a * b; }),
    row<F16(F16, F16, F16)>(
        "v_mad_f16",
        [](float a, float b, float c) { return half_rounded(a * b) + c; }, kKeepsHigh),
    // The legacy ones clear the other half.
    row<F16(F16, F16, F16)>(
        "v_mad_legacy_f16", [](float a, float b, float c) { return half_rounded(a * b) + c; }),
    row<F16(F16, F16, F16)>("v_madak_f16",
                            [](float a, float b, float k) { return half_rounded(a * b) + k; }),
    row<F16(F16, F16, F16)>("v_madmk_f16",
                            [](float a, float k, float c) { return half_rounded(a * k) + c; }),
    row<F16(F16, F16, F16)>("v_fma_legacy_f16",
                            [](float a, float b, float c) { return fused_half(a, b, c); }),
    row<F16(F16, F16, F16)>("v_div_fixup_legacy_f16",
                            [](float q, float a, float b) { return div_fixup(q, a, b); }),
    accumulate<F16(F16, F16)>(
        "v_mac_f16",
        [](float a, float b, float c) { return half_rounded(a * b) + c; }, kKeepsHigh),
    row<F16(F16, F16, F16)>(
        "v_fma_f16", [](float a, float b, float c) { return fused_half(a, b, c); }, kKeepsHigh),
    by_ieee<F16(F16, F16)>("v_min_f16", WEFT_IEEE(extreme<false, kIeee>)),
    by_ieee<F16(F16, F16)>("v_max_f16", WEFT_IEEE(extreme<true, kIeee>)),
    by_ieee<F16(F16, F16, F16)>("v_min3_f16", WEFT_IEEE(extreme3<false, kIeee>)),
    by_ieee<F16(F16, F16, F16)>("v_max3_f16", WEFT_IEEE(extreme3<true, kIeee>)),
    by_ieee<F16(F16, F16, F16)>("v_med3_f16", WEFT_IEEE(median<kIeee>)),
    row<F16(F16)>("v_fract_f16",
                  [](float x) {
                    const float f = x - __builtin_floorf(x);
                    return f > 0x1.ffcp-1F ? 0x1.ffcp-1F : f;
                  }),
    row<F16(F16)>("v_trunc_f16", [](float x) { return __builtin_truncf(x); }),
    row<F16(F16)>("v_ceil_f16", [](float x) { return __builtin_ceilf(x); }),
    row<F16(F16)>("v_floor_f16", [](float x) { return __builtin_floorf(x); }),
    row<F16(F16)>("v_rndne_f16", [](float x) { return __builtin_roundevenf(x); }),
    slow<F16(F16)>("v_exp_f16", [](float x) { return exp2_float(x); }),
    slow<F16(F16)>("v_log_f16", [](float x) { return log2_float(x); }),
    slow<F16(F16)>("v_rcp_f16", [](float x) { return 1.0F / x; }),
    slow<F16(F16)>("v_rsq_f16",
                   [](float x) { return static_cast<float>(1.0 / __builtin_sqrt(double{x})); }),
    slow<F16(F16)>("v_sqrt_f16", [](float x) { return __builtin_sqrtf(x); }),
    slow<F16(F16)>("v_sin_f16", [](float x) { return sin_turns(x); }),
    slow<F16(F16)>("v_cos_f16", [](float x) { return cos_turns(x); }),
    half_exponent_row("v_ldexp_f16", [](float x, int16_t e) { return scaled(x, int{e}); }),
    row<I16(F16)>("v_frexp_exp_i16_f16",
                  [](float x) { return static_cast<int16_t>(frexp_exponent(x)); }),
    row<F16(F16)>("v_frexp_mant_f16", [](float x) { return mantissa(x); }),
    row<F16(F16, F16, F16)>(
        "v_div_fixup_f16",
        [](float q, float a, float b) {
          // The quotient is exact enough in float; the corner cases are those of float.
          return div_fixup(q, a, b);
        },
        kKeepsHigh),
};

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim
