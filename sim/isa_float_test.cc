// Floating-point instructions against models from the manuals' pseudocode and notes.
#include <cfenv>

#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

using enum Kind;

bool is_nan(uint64_t code, const Format& format) { return std::isnan(decode(code, format)); }
bool is_signaling(uint64_t code, const Format& format) {
  return is_nan(code, format) && (code >> (format.mantissa_bits - 1) & 1) == 0;
}
uint64_t quiet(const Format& format) {
  return (((uint64_t{2} << format.exponent_bits) - 1) << (format.mantissa_bits - 1));
}

/// V_MIN and V_MAX with MODE.IEEE set.
uint64_t lesser(uint64_t x, uint64_t y, const Format& format) {
  if (is_signaling(x, format) || is_signaling(y, format)) {
    return quiet(format);
  }
  if (is_nan(x, format) || is_nan(y, format)) {
    return is_nan(x, format) ? y : x;
  }
  const Real of_x = decode(x, format);
  const Real of_y = decode(y, format);
  if (of_x == 0 && of_y == 0) {
    return std::signbit(of_x) ? x : y;
  }
  return of_x < of_y ? x : y;
}
uint64_t greater(uint64_t x, uint64_t y, const Format& format) {
  if (is_signaling(x, format) || is_signaling(y, format)) {
    return quiet(format);
  }
  if (is_nan(x, format) || is_nan(y, format)) {
    return is_nan(x, format) ? y : x;
  }
  const Real of_x = decode(x, format);
  const Real of_y = decode(y, format);
  if (of_x == 0 && of_y == 0) {
    return std::signbit(of_x) ? y : x;
  }
  return of_x >= of_y ? x : y;
}
uint64_t lesser3(uint64_t x, uint64_t y, uint64_t z, const Format& format) {
  return lesser(lesser(x, y, format), z, format);
}
uint64_t greater3(uint64_t x, uint64_t y, uint64_t z, const Format& format) {
  return greater(greater(x, y, format), z, format);
}
uint64_t middle(uint64_t x, uint64_t y, uint64_t z, const Format& format) {
  if (is_nan(x, format) || is_nan(y, format) || is_nan(z, format)) {
    return lesser3(x, y, z, format);
  }
  const Real top = decode(greater3(x, y, z, format), format);
  return top == decode(x, format)   ? greater(y, z, format)
         : top == decode(y, format) ? greater(x, z, format)
                                    : greater(x, y, format);
}
/// IEEE 754-2019 minimum and maximum: NaN in, NaN out.
uint64_t minimum(uint64_t x, uint64_t y, const Format& format) {
  return is_nan(x, format) || is_nan(y, format) ? quiet(format) : lesser(x, y, format);
}
uint64_t maximum(uint64_t x, uint64_t y, const Format& format) {
  return is_nan(x, format) || is_nan(y, format) ? quiet(format) : greater(x, y, format);
}

/// The result of `operation` under a host rounding mode.
template <class Operation>
auto rounded(int mode, Operation operation) {
  const int before = std::fegetround();
  std::fesetround(mode);
  const auto result = operation();
  std::fesetround(before);
  return result;
}
float add(float x, float y) {
  volatile float a = x;
  volatile float b = y;
  volatile float sum = a + b;
  return sum;
}
float multiply(float x, float y) {
  volatile float a = x;
  volatile float b = y;
  volatile float product = a * b;
  return product;
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }

/// A code of f16 as the low half; the high half of the destination is cleared.
constexpr uint64_t kLow = 0xffff;
/// The high half of the old destination kept.
uint64_t keep(uint64_t result, uint64_t old) { return (result & kLow) | (old & 0xffff0000); }

uint64_t pack(uint64_t low, uint64_t high) { return (low & kLow) | high << 16; }

template <class T>
T clamp01(T x) {
  return std::isnan(x) ? T(0) : x < 0 ? T(0) : x > 1 ? T(1) : x;
}

int exponent_f32(float x) { return static_cast<int>(u(x) >> 23 & 255); }

template <class T>
T frexp_mantissa(T x) {
  int e = 0;
  return std::isfinite(x) ? std::frexp(x, &e) : x;
}
template <class T>
int frexp_exponent(T x) {
  int e = 0;
  if (!std::isfinite(x)) {
    return 0;
  }
  std::frexp(x, &e);
  return e;
}
template <class T>
T fraction(T x, T below_one) {
  const T rest = x - std::floor(x);
  return rest > below_one ? below_one : rest;
}

/// V_CMP_CLASS's bit of a number.
int class_of(uint64_t code, const Format& format) {
  const Real x = decode(code, format);
  const bool negative = (code & format.sign()) != 0;
  if (std::isnan(x)) {
    return is_signaling(code, format) ? 0 : 1;
  }
  if (std::isinf(x)) {
    return negative ? 2 : 9;
  }
  if (x == 0) {
    return negative ? 5 : 6;
  }
  const bool denormal = std::fabs(x) < std::ldexp(Real{1}, 1 - format.bias);
  return denormal ? (negative ? 4 : 7) : (negative ? 3 : 8);
}

double cosine(double turns) {
  return std::isinf(turns) ? NAN : std::cos(2 * M_PI * (turns - std::trunc(turns)));
}
double sine(double turns) {
  return std::isinf(turns) ? NAN
         : turns == 0      ? turns
                           : std::sin(2 * M_PI * (turns - std::trunc(turns)));
}

const std::vector<Check>& arithmetic() {
  static const std::vector<Check> checks = {
      {"v_add_f32 D, A, B", f32, f32, none, As::f32, WEFT_MODEL(u(f(a) + f(b)))},
      {"v_sub_f32 D, A, B", f32, f32, none, As::f32, WEFT_MODEL(u(f(a) - f(b)))},
      {"v_subrev_f32 D, A, B", f32, f32, none, As::f32, WEFT_MODEL(u(f(b) - f(a)))},
      {"v_mul_f32 D, A, B", f32, f32, none, As::f32, WEFT_MODEL(u(f(a) * f(b)))},
      {"v_mul_legacy_f32 D, A, B", f32, f32, none, As::f32,
       WEFT_MODEL(f(a) == 0 || f(b) == 0 ? 0 : u(f(a) * f(b)))},
      {"v_fma_f32 D, A, B, C", f32, f32, f32, As::f32, WEFT_MODEL(u(std::fma(f(a), f(b), f(c))))},
      {"v_fmac_f32 D, A, B", f32, f32, none, As::f32, WEFT_MODEL(u(std::fma(f(a), f(b), f(d))))},
      {"v_fmamk_f32 D, A, 0x40490fdb, B", f32, f32, none, As::f32,
       WEFT_MODEL(u(std::fma(f(a), f(0x40490fdb), f(b))))},
      {"v_fmaak_f32 D, A, B, 0x40490fdb", f32, f32, none, As::f32,
       WEFT_MODEL(u(std::fma(f(a), f(b), f(0x40490fdb))))},
      {"v_add_f32 D, -A, |B|", f32, f32, none, As::f32, WEFT_MODEL(u(-f(a) + std::fabs(f(b))))},
      {"v_mul_f32 D, -|A|, 0.5", f32, none, none, As::f32, WEFT_MODEL(u(-std::fabs(f(a)) * 0.5F))},
      {"v_fma_f32 D, A, -B, |C| clamp", f32, f32, f32, As::f32,
       WEFT_MODEL(u(clamp01(std::fma(f(a), -f(b), std::fabs(f(c))))))},
      {"v_add_f32 D, A, B clamp", f32, f32, none, As::f32, WEFT_MODEL(u(clamp01(f(a) + f(b))))},
      {"v_min_f32 D, A, B", f32, f32, none, As::f32,
       WEFT_MODEL(lesser(a & 0xffffffff, b & 0xffffffff, kF32))},
      {"v_max_f32 D, A, B", f32, f32, none, As::f32,
       WEFT_MODEL(greater(a & 0xffffffff, b & 0xffffffff, kF32))},
      {"v_min3_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(lesser3(a & 0xffffffff, b & 0xffffffff, c & 0xffffffff, kF32))},
      {"v_max3_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(greater3(a & 0xffffffff, b & 0xffffffff, c & 0xffffffff, kF32))},
      {"v_med3_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(middle(a & 0xffffffff, b & 0xffffffff, c & 0xffffffff, kF32))},
      {"v_pk_add_f32 D2, A2, B2", pk_f32, pk_f32, none, As::pk_f32,
       WEFT_MODEL(pair(u(f(a) + f(b)), u(f_high(a) + f_high(b))))},
      {"v_pk_mul_f32 D2, A2, B2", pk_f32, pk_f32, none, As::pk_f32,
       WEFT_MODEL(pair(u(f(a) * f(b)), u(f_high(a) * f_high(b))))},
      {"v_pk_fma_f32 D2, A2, B2, C2", pk_f32, pk_f32, pk_f32, As::pk_f32,
       WEFT_MODEL(
           pair(u(std::fma(f(a), f(b), f(c))), u(std::fma(f_high(a), f_high(b), f_high(c)))))},
      {"v_pk_add_f32 D2, A2, B2 op_sel:[1,0] op_sel_hi:[0,0]", pk_f32, pk_f32, none, As::pk_f32,
       WEFT_MODEL(pair(u(f_high(a) + f(b)), u(f(a) + f(b))))},
      {"v_pk_mul_f32 D2, A2, B2 neg_lo:[1,0] neg_hi:[0,1]", pk_f32, pk_f32, none, As::pk_f32,
       WEFT_MODEL(pair(u(-f(a) * f(b)), u(f_high(a) * -f_high(b))))},
      {"v_pk_mov_b32 D2, A2, B2 op_sel:[1,0]", i64, i64, none, As::bits,
       WEFT_MODEL(pair(a >> 32, b))},
      {"v_add_f64 D2, A2, B2", f64, f64, none, As::f64, WEFT_MODEL(u(d64(a) + d64(b)))},
      {"v_mul_f64 D2, A2, B2", f64, f64, none, As::f64, WEFT_MODEL(u(d64(a) * d64(b)))},
      {"v_fma_f64 D2, A2, B2, C2", f64, f64, f64, As::f64,
       WEFT_MODEL(u(std::fma(d64(a), d64(b), d64(c))))},
      {"v_fmac_f64 D2, A2, B2", f64, f64, none, As::f64,
       WEFT_MODEL(u(std::fma(d64(a), d64(b), d64(d))))},
      {"v_add_f64 D2, -A2, |B2|", f64, f64, none, As::f64,
       WEFT_MODEL(u(-d64(a) + std::fabs(d64(b))))},
      {"v_min_f64 D2, A2, B2", f64, f64, none, As::f64, WEFT_MODEL(lesser(a, b, kF64))},
      {"v_max_f64 D2, A2, B2", f64, f64, none, As::f64, WEFT_MODEL(greater(a, b, kF64))},
      {"v_add_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(half(h(a) + h(b)))},
      {"v_sub_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(half(h(a) - h(b)))},
      {"v_subrev_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(half(h(b) - h(a)))},
      {"v_mul_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(half(h(a) * h(b)))},
      {"v_fma_f16 D, A, B, C", f16, f16, f16, As::f16,
       WEFT_MODEL(keep(half_fma(h(a), h(b), h(c)), d))},
      {"v_fma_f16 D, A, B, C op_sel:[1,0,1,0]", pk_f16, f16, pk_f16, As::f16,
       WEFT_MODEL(keep(half_fma(h_high(a), h(b), h_high(c)), d))},
      {"v_min_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(lesser(a & kLow, b & kLow, kF16))},
      {"v_max_f16 D, A, B", f16, f16, none, As::f16, WEFT_MODEL(greater(a & kLow, b & kLow, kF16))},
      {"v_min3_f16 D, A, B, C", f16, f16, f16, As::low_f16,
       WEFT_MODEL(lesser3(a & kLow, b & kLow, c & kLow, kF16))},
      {"v_max3_f16 D, A, B, C", f16, f16, f16, As::low_f16,
       WEFT_MODEL(greater3(a & kLow, b & kLow, c & kLow, kF16))},
      {"v_med3_f16 D, A, B, C", f16, f16, f16, As::low_f16,
       WEFT_MODEL(middle(a & kLow, b & kLow, c & kLow, kF16))},
      {"v_pk_add_f16 D, A, B", pk_f16, pk_f16, none, As::pk_f16,
       WEFT_MODEL(pack(half(h(a) + h(b)), half(h_high(a) + h_high(b))))},
      {"v_pk_mul_f16 D, A, B", pk_f16, pk_f16, none, As::pk_f16,
       WEFT_MODEL(pack(half(h(a) * h(b)), half(h_high(a) * h_high(b))))},
      {"v_pk_fma_f16 D, A, B, C", pk_f16, pk_f16, pk_f16, As::pk_f16,
       WEFT_MODEL(pack(half_fma(h(a), h(b), h(c)), half_fma(h_high(a), h_high(b), h_high(c))))},
      {"v_pk_add_f16 D, A, B op_sel:[1,0] op_sel_hi:[0,1]", pk_f16, pk_f16, none, As::pk_f16,
       WEFT_MODEL(pack(half(h_high(a) + h(b)), half(h(a) + h_high(b))))},
      {"v_pk_fma_f16 D, A, B, C neg_lo:[1,0,0] neg_hi:[0,0,1]", pk_f16, pk_f16, pk_f16, As::pk_f16,
       WEFT_MODEL(pack(half_fma(-h(a), h(b), h(c)), half_fma(h_high(a), h_high(b), -h_high(c))))},
      {"v_pk_min_f16 D, A, B", pk_f16, pk_f16, none, As::pk_f16,
       WEFT_MODEL(
           pack(lesser(a & kLow, b & kLow, kF16), lesser(a >> 16 & kLow, b >> 16 & kLow, kF16)))},
      {"v_pk_max_f16 D, A, B", pk_f16, pk_f16, none, As::pk_f16,
       WEFT_MODEL(
           pack(greater(a & kLow, b & kLow, kF16), greater(a >> 16 & kLow, b >> 16 & kLow, kF16)))},
      {"v_fma_mix_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), f(b), f(c))))},
      {"v_fma_mix_f32 D, A, B, C op_sel:[0,1,0] op_sel_hi:[1,1,0]", pk_f16, pk_f16, f32, As::f32,
       WEFT_MODEL(u(std::fma(static_cast<float>(h(a)), static_cast<float>(h_high(b)), f(c))))},
      {"v_fma_mix_f32 D, -|A|, B, C op_sel_hi:[1,0,0]", pk_f16, f32, f32, As::f32,
       WEFT_MODEL(u(std::fma(-std::fabs(static_cast<float>(h(a))), f(b), f(c))))},
      // The f32 sum is rounded before it becomes an f16.
      {"v_fma_mixlo_f16 D, A, B, C op_sel_hi:[1,1,0]", pk_f16, pk_f16, f32, As::f16,
       WEFT_MODEL(keep(half(static_cast<double>(
                           std::fma(static_cast<float>(h(a)), static_cast<float>(h(b)), f(c)))),
                       d))},
      {"v_fma_mixhi_f16 D, A, B, C op_sel:[1,0,0] op_sel_hi:[1,1,0]", pk_f16, pk_f16, f32,
       As::pk_f16,
       WEFT_MODEL(pack(d, half(static_cast<double>(std::fma(static_cast<float>(h_high(a)),
                                                            static_cast<float>(h(b)), f(c))))))},
  };
  return checks;
}

const std::vector<Check>& single_operand() {
  static const std::vector<Check> checks = {
      {"v_trunc_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(std::trunc(f(a))))},
      {"v_ceil_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(std::ceil(f(a))))},
      {"v_floor_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(std::floor(f(a))))},
      {"v_rndne_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(std::nearbyint(f(a))))},
      {"v_trunc_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(std::trunc(d64(a))))},
      {"v_ceil_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(std::ceil(d64(a))))},
      {"v_floor_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(std::floor(d64(a))))},
      {"v_rndne_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(std::nearbyint(d64(a))))},
      {"v_trunc_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::trunc(h(a))))},
      {"v_ceil_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::ceil(h(a))))},
      {"v_floor_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::floor(h(a))))},
      {"v_rndne_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::nearbyint(h(a))))},
      {"v_fract_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(fraction(f(a), f(0x3f7fffff))))},
      {"v_fract_f64 D2, A2", f64, none, none, As::f64,
       WEFT_MODEL(u(fraction(d64(a), d64(0x3fefffffffffffff))))},
      {"v_fract_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(fraction(h(a), h(0x3bff))))},
      {"v_frexp_mant_f32 D, A", f32, none, none, As::f32, WEFT_MODEL(u(frexp_mantissa(f(a))))},
      {"v_frexp_mant_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(frexp_mantissa(d64(a))))},
      {"v_frexp_mant_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(frexp_mantissa(h(a))))},
      {"v_frexp_exp_i32_f32 D, A", f32, none, none, As::bits, WEFT_MODEL(frexp_exponent(f(a)))},
      {"v_frexp_exp_i32_f64 D, A2", f64, none, none, As::bits, WEFT_MODEL(frexp_exponent(d64(a)))},
      {"v_frexp_exp_i16_f16 D, A", f16, none, none, As::low16, WEFT_MODEL(frexp_exponent(h(a)))},
      {"v_ldexp_f32 D, A, B", f32, i16, none, As::f32, WEFT_MODEL(u(std::ldexp(f(a), i(b))))},
      {"v_ldexp_f64 D2, A2, B", f64, i32, none, As::f64, WEFT_MODEL(u(std::ldexp(d64(a), i(b))))},
      {"v_ldexp_f16 D, A, B", f16, i16, none, As::f16,
       WEFT_MODEL(half(std::ldexp(h(a), short_of(b))))},
      {"v_rcp_f32 D, A",
       f32,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(flushed(static_cast<float>(1.0 / static_cast<double>(flushed(f(a))))))),
       {},
       1},
      {"v_rsq_f32 D, A",
       f32,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(flushed(f(a)) == 0
                        ? std::copysign(INFINITY, f(a))
                        : static_cast<float>(1.0 / std::sqrt(static_cast<double>(f(a)))))),
       {},
       1},
      {"v_sqrt_f32 D, A",
       f32,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(static_cast<float>(std::sqrt(static_cast<double>(flushed(f(a))))))),
       {},
       1},
      {"v_exp_f32 D, A",
       f32,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(flushed(static_cast<float>(std::exp2(static_cast<double>(flushed(f(a)))))))),
       {},
       1},
      {"v_log_f32 D, A",
       f32,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(static_cast<float>(std::log2(static_cast<double>(flushed(f(a))))))),
       {},
       1},
      {"v_rcp_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(1.0 / h(a))), {}, 1},
      {"v_rsq_f16 D, A",
       f16,
       none,
       none,
       As::f16,
       WEFT_MODEL(half(h(a) == 0 ? std::copysign(INFINITY, h(a)) : 1.0 / std::sqrt(h(a)))),
       {},
       1},
      {"v_sqrt_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::sqrt(h(a)))), {}, 1},
      {"v_exp_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::exp2(h(a)))), {}, 1},
      {"v_log_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(std::log2(h(a)))), {}, 1},
      {"v_rcp_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(1.0 / d64(a))), {}, 0x1p29},
      {"v_rsq_f64 D2, A2",
       f64,
       none,
       none,
       As::f64,
       WEFT_MODEL(u(d64(a) == 0 ? std::copysign(INFINITY, d64(a)) : 1.0 / std::sqrt(d64(a)))),
       {},
       0x1p29},
      {"v_sqrt_f64 D2, A2", f64, none, none, As::f64, WEFT_MODEL(u(std::sqrt(d64(a)))), {}, 0x1p29},
  };
  return checks;
}

/// Sine and cosine of turns, absolutely: near a zero of theirs no relative error is promised.
TEST(IsaFloat, Trigonometric) {
  std::vector<Check> checks;
  for (const bool is_sine : {true, false}) {
    const auto model = [is_sine](const In& in) {
      // The manual's examples: what is finite but beyond the range counts as a whole turn.
      const double x = f(in.a);
      return u(static_cast<float>(is_sine ? sine(x) : cosine(x)));
    };
    checks.push_back({is_sine ? "v_sin_f32 D, A" : "v_cos_f32 D, A",
                      f32,
                      none,
                      none,
                      As::f32,
                      model,
                      {},
                      -1e-6});
  }
  checks.push_back(
      {"v_sin_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(sine(h(a)))), {}, -1e-3});
  checks.push_back(
      {"v_cos_f16 D, A", f16, none, none, As::f16, WEFT_MODEL(half(cosine(h(a)))), {}, -1e-3});
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target);
  }
}

TEST(IsaFloat, Arithmetic) {
  for (const Target target : cdna::kTargets) {
    run_checks(arithmetic(), target);
  }
}

TEST(IsaFloat, SingleOperand) {
  for (const Target target : cdna::kTargets) {
    run_checks(single_operand(), target);
  }
}

TEST(IsaFloat, Modes) {
  std::vector<Check> checks;
  // MODE[1:0] rounds f32: nearest, up, down, zero; MODE[3:2] f64 and f16.
  constexpr int kModes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  for (unsigned mode = 0; mode < 4; ++mode) {
    const int host = kModes[mode];
    checks.push_back(
        {"v_add_f32 D, A, B",
         f32,
         f32,
         none,
         As::f32,
         [host](const In& in) { return u(rounded(host, [&] { return add(f(in.a), f(in.b)); })); },
         {},
         0,
         {},
         0xf0 | mode});
    checks.push_back({"v_mul_f32 D, A, B",
                      f32,
                      f32,
                      none,
                      As::f32,
                      [host](const In& in) {
                        return u(rounded(host, [&] { return multiply(f(in.a), f(in.b)); }));
                      },
                      {},
                      0,
                      {},
                      0xf0 | mode});
    const Round round = std::array{Round::even, Round::up, Round::down, Round::zero}[mode];
    checks.push_back({"v_cvt_f16_f32 D, A",
                      f32,
                      none,
                      none,
                      As::f16,
                      [round](const In& in) {
                        return half(static_cast<Wide>(f(in.a)), static_cast<double>(f(in.a)),
                                    round);
                      },
                      {},
                      0,
                      {},
                      0xf0 | mode << 2});
  }
  // Denormals of f32 flushed in and out (MODE[5:4] = 0); those of f16 and f64 kept.
  checks.push_back({"v_add_f32 D, A, B",
                    f32,
                    f32,
                    none,
                    As::f32,
                    WEFT_MODEL(u(flushed(flushed(f(a)) + flushed(f(b))))),
                    {},
                    0,
                    {},
                    0xc0});
  checks.push_back({"v_fma_f32 D, A, B, C",
                    f32,
                    f32,
                    f32,
                    As::f32,
                    WEFT_MODEL(u(flushed(std::fma(flushed(f(a)), flushed(f(b)), flushed(f(c)))))),
                    {},
                    0,
                    {},
                    0xc0});
  checks.push_back({"v_min_f32 D, A, B",
                    f32,
                    f32,
                    none,
                    As::f32,
                    WEFT_MODEL(u(flushed(f(lesser(a, b, kF32))))),
                    {},
                    0,
                    {},
                    0xc0});
  checks.push_back({"v_add_f64 D2, A2, B2",
                    f64,
                    f64,
                    none,
                    As::f64,
                    WEFT_MODEL(u(d64(a) + d64(b))),
                    {},
                    0,
                    {},
                    0xc0});
  checks.push_back({"v_add_f16 D, A, B",
                    f16,
                    f16,
                    none,
                    As::f16,
                    WEFT_MODEL(half(h(a) + h(b))),
                    {},
                    0,
                    {},
                    0xc0});
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target);
  }
}

/// Compares: VCC and an SGPR pair; NaN is unordered.
/// Output modifiers work only where MODE neither asks for IEEE's rules, as it does from the start,
/// nor lets results be denormal (CDNA3 and CDNA4, section 6.2.2).
TEST(IsaFloat, OutputModifiers) {
  const std::string off = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 9, 1), 0\n ";
  const std::string flush = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 6), 0\n ";
  const auto small = [](In& in) {
    in.a = u(static_cast<float>(in.lane - 32));
    in.b = u(-1.5F);
  };
  const auto check = [&](const std::string& text, std::function<uint64_t(const In&)> model) {
    return Check{text, f32, f32, none, As::bits, std::move(model), {}, 0, small};
  };
  for (const Target target : cdna::kTargets) {
    run_checks(
        {check("v_mul_f32_e64 D, A, B mul:2", WEFT_MODEL(u(f(a) * f(b)))),
         check(off + "v_mul_f32_e64 D, A, B mul:2", WEFT_MODEL(u(f(a) * f(b)))),
         check(flush + "v_mul_f32_e64 D, A, B mul:2", WEFT_MODEL(u(f(a) * f(b) * 2 + 0.0F))),
         check(flush + "v_mul_f32_e64 D, A, B mul:4", WEFT_MODEL(u(f(a) * f(b) * 4 + 0.0F))),
         check(flush + "v_add_f32_e64 D, A, B div:2", WEFT_MODEL(u((f(a) + f(b)) / 2 + 0.0F))),
         check(flush + "v_mul_f32_e64 D, A, B clamp div:2",
               WEFT_MODEL(u(std::fmin(std::fmax(f(a) * f(b) / 2 + 0.0F, 0.0F), 1.0F))))},
        target, 2);
  }
}

TEST(IsaFloat, Compares) {
  struct Relation {
    const char* name;
    bool less, equal, greater, unordered;
  };
  constexpr Relation kRelations[] = {
      {"f", false, false, false, false}, {"lt", true, false, false, false},
      {"eq", false, true, false, false}, {"le", true, true, false, false},
      {"gt", false, false, true, false}, {"lg", true, false, true, false},
      {"ge", false, true, true, false},  {"o", true, true, true, false},
      {"u", false, false, false, true},  {"nge", true, false, false, true},
      {"nlg", false, true, false, true}, {"ngt", true, true, false, true},
      {"nle", false, false, true, true}, {"neq", true, false, true, true},
      {"nlt", false, true, true, true},  {"tru", true, true, true, true}};
  std::vector<Check> checks;
  const auto keep_d = WEFT_MODEL(d);
  for (const Relation& r : kRelations) {
    struct Width {
      const char* name;
      const char* operands;
      Kind kind;
      Format format;
    };
    for (const Width& w :
         {Width{"f32", "vcc, A, B", f32, kF32}, Width{"f16", "vcc, A, B", f16, kF16},
          Width{"f64", "vcc, A2, B2", f64, kF64}}) {
      const Format format = w.format;
      checks.push_back({std::string("v_cmp_") + r.name + "_" + w.name + " " + w.operands, w.kind,
                        w.kind, none, As::bits, keep_d, [r, format](const In& in) {
                          const uint64_t mask = format.width() == 64
                                                    ? ~uint64_t{0}
                                                    : (uint64_t{1} << format.width()) - 1;
                          const Real x = decode(in.a & mask, format);
                          const Real y = decode(in.b & mask, format);
                          return std::isnan(x) || std::isnan(y) ? r.unordered
                                 : x < y                        ? r.less
                                 : x == y                       ? r.equal
                                                                : r.greater;
                        }});
    }
  }
  checks.push_back({"v_cmp_lt_f32_e64 vcc, -|A|, B", f32, f32, none, As::bits, keep_d,
                    WEFT_VCC(-std::fabs(f(a)) < f(b))});
  checks.push_back({"v_cmp_class_f32 vcc, A, B", f32, i32, none, As::bits, keep_d,
                    WEFT_VCC((b >> class_of(a & 0xffffffff, kF32) & 1) != 0)});
  checks.push_back({"v_cmp_class_f64 vcc, A2, B", f64, i32, none, As::bits, keep_d,
                    WEFT_VCC((b >> class_of(a, kF64) & 1) != 0)});
  checks.push_back({"v_cmp_class_f16 vcc, A, B", f16, i32, none, As::bits, keep_d,
                    WEFT_VCC((b >> class_of(a & kLow, kF16) & 1) != 0)});
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 16);
  }
}

float div_scale(float x, float denominator, float numerator, bool* post) {
  *post = false;
  const auto denormal = [](double value, bool single) {
    return value != 0 && std::fabs(value) < (single ? 0x1p-126 : 0x1p-1022);
  };
  const float quotient = numerator / denominator;
  const bool tiny_inverse = denormal(1.0 / static_cast<double>(denominator), false) ||
                            denormal(static_cast<double>(1.0F / denominator), true);
  const bool tiny_quotient = denormal(quotient, true);
  if (denominator == 0 || numerator == 0) {
    return NAN;
  }
  if (exponent_f32(numerator) - exponent_f32(denominator) >= 96) {
    *post = true;
    return x == denominator ? std::ldexp(x, 64) : x;
  }
  if (denormal(denominator, true)) {
    return std::ldexp(x, 64);
  }
  if (tiny_inverse && tiny_quotient) {
    *post = true;
    return x == denominator ? std::ldexp(x, 64) : x;
  }
  if (tiny_inverse) {
    return std::ldexp(x, -64);
  }
  if (tiny_quotient) {
    *post = true;
    return x == numerator ? std::ldexp(x, 64) : x;
  }
  return exponent_f32(numerator) <= 23 ? std::ldexp(x, 64) : x;
}

/// The division macro as compilers write it: its result is IEEE division, for all operands.
TEST(IsaFloat, Division) {
  const std::vector<Check> checks = {
      {"v_div_scale_f32 v12, vcc, B, B, A\n v_rcp_f32 v13, v12\n"
       " v_div_scale_f32 v14, vcc, A, B, A\n v_fma_f32 v15, -v12, v13, 1.0\n v_fmac_f32 v13, v15, "
       "v13\n"
       " v_mul_f32 v15, v14, v13\n v_fma_f32 v3, -v12, v15, v14\n v_fmac_f32 v15, v3, v13\n"
       " v_fma_f32 v12, -v12, v15, v14\n v_div_fmas_f32 v12, v12, v13, v15\n v_div_fixup_f32 D, "
       "v12, B, A",
       f32, f32, none, As::f32, WEFT_MODEL(u(f(a) / f(b))),
       [](const In& in) {
         bool post = false;
         div_scale(f(in.a), f(in.b), f(in.a), &post);
         return post;
       }},
      {"v_div_fixup_f32 D, C, B, A", f32, f32, f32, As::f32,
       [](const In& in) -> uint64_t {
         const float q = f(in.c);
         const float denominator = f(in.b);
         const float numerator = f(in.a);
         const bool negative = std::signbit(denominator) != std::signbit(numerator);
         if (std::isnan(numerator) || std::isnan(denominator) ||
             (numerator == 0 && denominator == 0) ||
             (std::isinf(numerator) && std::isinf(denominator))) {
           return u(NAN);
         }
         // A NaN that no operand explains: the macro overflowed.
         float result = std::isnan(q) ? INFINITY : std::fabs(q);
         if (denominator == 0 || std::isinf(numerator)) {
           result = INFINITY;
         } else if (std::isinf(denominator) || numerator == 0 ||
                    exponent_f32(numerator) - exponent_f32(denominator) < -150) {
           result = 0;
         }
         return u(negative ? -result : result);
       }},
      // The manuals give 2^32 (2^64) whatever the quotient; only this makes the macro divide, whose
      // scaled quotients are 2^64 (2^128) too small or too large. One rounding, or denormal
      // quotients would not be IEEE's.
      {"v_div_fmas_f32 D, A, B, C", f32, f32, f32, As::f32,
       [](const In& in) {
         const float sum = std::fma(f(in.a), f(in.b), f(in.c));
         const float scale = std::ldexp(1.0F, exponent_f32(f(in.c)) > 127 ? 64 : -64);
         const Wide wide = Wide{f(in.a)} * f(in.b) + f(in.c);
         const float scaled = sum * scale;
         return u(!in.vcc                                   ? sum
                  : std::fpclassify(scaled) != FP_SUBNORMAL ? scaled
                                                            : static_cast<float>(wide * scale));
       }},
      {"v_div_fmas_f64 D2, A2, B2, C2", f64, f64, f64, As::f64,
       [](const In& in) {
         const double sum = std::fma(d64(in.a), d64(in.b), d64(in.c));
         const double scale = std::ldexp(1.0, (in.c >> 52 & 2047) > 1023 ? 128 : -128);
         const Wide wide = Wide{d64(in.a)} * d64(in.b) + d64(in.c);
         const double scaled = sum * scale;
         return u(!in.vcc                                   ? sum
                  : std::fpclassify(scaled) != FP_SUBNORMAL ? scaled
                                                            : static_cast<double>(wide * scale));
       }},
  };
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 64);
  }
}

TEST(IsaFloat, DivisionOfDoubles) {
  const std::vector<Check> checks = {
      {"v_div_scale_f64 v[12:13], s[20:21], B2, B2, A2\n v_rcp_f64 v[14:15], v[12:13]\n"
       " s_nop 0\n v_fma_f64 C2, -v[12:13], v[14:15], 1.0\n v_fma_f64 v[14:15], v[14:15], C2, "
       "v[14:15]\n"
       " v_fma_f64 C2, -v[12:13], v[14:15], 1.0\n v_fma_f64 v[14:15], v[14:15], C2, v[14:15]\n"
       " v_div_scale_f64 C2, vcc, A2, B2, A2\n v_mul_f64 D2, C2, v[14:15]\n"
       " v_fma_f64 C2, -v[12:13], D2, C2\n s_nop 1\n v_div_fmas_f64 D2, C2, v[14:15], D2\n"
       " s_mov_b64 vcc, 0\n v_div_fixup_f64 D2, D2, B2, A2",
       f64, f64, none, As::f64, WEFT_MODEL(u(d64(a) / d64(b))), WEFT_VCC(false)},
  };
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 64);
  }
}

int32_t saturated(double x, double least, double most) {
  return static_cast<int32_t>(static_cast<int64_t>(std::isnan(x) ? 0
                                                   : x < least   ? least
                                                   : x > most    ? most
                                                                 : std::trunc(x)));
}
double snorm(double x) {
  return std::isnan(x) ? 0 : std::nearbyint(std::fmin(std::fmax(x, -1), 1) * 32767);
}
double unorm(double x) {
  return std::isnan(x) ? 0 : std::nearbyint(std::fmin(std::fmax(x, 0), 1) * 65535);
}

TEST(IsaFloat, Conversions) {
  const std::vector<Check> checks = {
      {"v_cvt_i32_f32 D, A", f32, none, none, As::bits,
       WEFT_MODEL(saturated(f(a), -0x1p31, 0x1p31 - 1))},
      {"v_cvt_u32_f32 D, A", f32, none, none, As::bits, WEFT_MODEL(saturated(f(a), 0, 0x1p32 - 1))},
      {"v_cvt_i32_f64 D, A2", f64, none, none, As::bits,
       WEFT_MODEL(saturated(d64(a), -0x1p31, 0x1p31 - 1))},
      {"v_cvt_u32_f64 D, A2", f64, none, none, As::bits,
       WEFT_MODEL(saturated(d64(a), 0, 0x1p32 - 1))},
      {"v_cvt_flr_i32_f32 D, A", f32, none, none, As::bits,
       WEFT_MODEL(saturated(std::floor(static_cast<double>(f(a))), -0x1p31, 0x1p31 - 1))},
      {"v_cvt_rpi_i32_f32 D, A", f32, none, none, As::bits,
       WEFT_MODEL(saturated(std::floor(static_cast<double>(f(a)) + 0.5), -0x1p31, 0x1p31 - 1))},
      {"v_cvt_i16_f16 D, A", f16, none, none, As::low16,
       WEFT_MODEL(saturated(h(a), -32768, 32767))},
      {"v_cvt_u16_f16 D, A", f16, none, none, As::low16, WEFT_MODEL(saturated(h(a), 0, 65535))},
      {"v_cvt_f32_i32 D, A", i32, none, none, As::f32, WEFT_MODEL(u(static_cast<float>(i(a))))},
      {"v_cvt_f32_u32 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>(static_cast<uint32_t>(a))))},
      {"v_cvt_f64_i32 D2, A", i32, none, none, As::f64, WEFT_MODEL(u(static_cast<double>(i(a))))},
      {"v_cvt_f64_u32 D2, A", i32, none, none, As::f64,
       WEFT_MODEL(u(static_cast<double>(static_cast<uint32_t>(a))))},
      {"v_cvt_f16_i16 D, A", i16, none, none, As::f16,
       WEFT_MODEL(half(static_cast<double>(short_of(a))))},
      {"v_cvt_f16_u16 D, A", i16, none, none, As::f16,
       WEFT_MODEL(half(static_cast<double>(a & kLow)))},
      {"v_cvt_f32_f64 D, A2", f64, none, none, As::f32, WEFT_MODEL(u(static_cast<float>(d64(a))))},
      {"v_cvt_f64_f32 D2, A", f32, none, none, As::f64, WEFT_MODEL(u(static_cast<double>(f(a))))},
      {"v_cvt_f32_f16 D, A", f16, none, none, As::f32, WEFT_MODEL(u(static_cast<float>(h(a))))},
      {"v_cvt_f16_f32 D, A", f32, none, none, As::f16, WEFT_MODEL(half(static_cast<double>(f(a))))},
      {"v_cvt_pkrtz_f16_f32 D, A, B", f32, f32, none, As::pk_f16,
       WEFT_MODEL(pack(half(static_cast<Wide>(f(a)), static_cast<double>(f(a)), Round::zero),
                       half(static_cast<Wide>(f(b)), static_cast<double>(f(b)), Round::zero)))},
      {"v_cvt_f32_ubyte0 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>(a & 255)))},
      {"v_cvt_f32_ubyte1 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>(a >> 8 & 255)))},
      {"v_cvt_f32_ubyte2 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>(a >> 16 & 255)))},
      {"v_cvt_f32_ubyte3 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>(a >> 24 & 255)))},
      {"v_cvt_off_f32_i4 D, A", i32, none, none, As::f32,
       WEFT_MODEL(u(static_cast<float>((static_cast<int>(a & 15) ^ 8) - 8) / 16))},
      {"v_cvt_pknorm_i16_f32 D, A, B", f32, f32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(static_cast<int64_t>(snorm(f(a)))),
                       static_cast<uint64_t>(static_cast<int64_t>(snorm(f(b)))) & kLow))},
      {"v_cvt_pknorm_u16_f32 D, A, B", f32, f32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(unorm(f(a))), static_cast<uint64_t>(unorm(f(b)))))},
      {"v_cvt_norm_i16_f16 D, A", f16, none, none, As::low16,
       WEFT_MODEL(static_cast<int64_t>(snorm(h(a))))},
      {"v_cvt_norm_u16_f16 D, A", f16, none, none, As::low16, WEFT_MODEL(unorm(h(a)))},
      {"v_cvt_pknorm_i16_f16 D, A, B", f16, f16, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(static_cast<int64_t>(snorm(h(a)))),
                       static_cast<uint64_t>(static_cast<int64_t>(snorm(h(b)))) & kLow))},
      {"v_cvt_pknorm_u16_f16 D, A, B", f16, f16, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(unorm(h(a))), static_cast<uint64_t>(unorm(h(b)))))},
      {"v_cvt_pk_u8_f32 D, A, B, C", f32, i32, i32, As::bits,
       WEFT_MODEL(
           (c & 0xffffffff & ~(uint64_t{255} << (b & 3) * 8)) |
           static_cast<uint64_t>(
               std::isnan(f(a)) ? 0 : std::fmin(std::fmax(std::nearbyint(f(a)), 0.0F), 255.0F))
               << (b & 3) * 8)},
  };
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target);
  }
}

TEST(IsaFloat, MinimumMaximum) {
  const std::vector<Check> checks = {
      {"v_minimum3_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(minimum(minimum(a & 0xffffffff, b & 0xffffffff, kF32), c & 0xffffffff, kF32))},
      {"v_maximum3_f32 D, A, B, C", f32, f32, f32, As::f32,
       WEFT_MODEL(maximum(maximum(a & 0xffffffff, b & 0xffffffff, kF32), c & 0xffffffff, kF32))},
      {"v_pk_minimum3_f16 D, A, B, C", pk_f16, pk_f16, pk_f16, As::pk_f16,
       WEFT_MODEL(
           pack(minimum(minimum(a & kLow, b & kLow, kF16), c & kLow, kF16),
                minimum(minimum(a >> 16 & kLow, b >> 16 & kLow, kF16), c >> 16 & kLow, kF16)))},
      {"v_pk_maximum3_f16 D, A, B, C", pk_f16, pk_f16, pk_f16, As::pk_f16,
       WEFT_MODEL(
           pack(maximum(maximum(a & kLow, b & kLow, kF16), c & kLow, kF16),
                maximum(maximum(a >> 16 & kLow, b >> 16 & kLow, kF16), c >> 16 & kLow, kF16)))},
      {"v_cvt_pk_f16_f32 D, A, B", f32, f32, none, As::pk_f16,
       WEFT_MODEL(pack(half(static_cast<double>(f(a))), half(static_cast<double>(f(b)))))},
  };
  run_checks(checks, Target::gfx950);
}

/// Of small integers, whose sums are exact in whatever order and precision: the manuals leave those
/// open for other numbers.
TEST(IsaFloat, DotProducts) {
  const auto integers = [](uint64_t (*code)(double)) {
    return [code](In& in) {
      const auto packed = [&](uint64_t x) {
        return code(static_cast<double>(x % 31) - 15) | code(static_cast<double>(x / 31 % 31) - 15)
                                                            << 16;
      };
      in.a = packed(in.a % 961);
      in.b = packed(in.b % 961);
      in.c = u(static_cast<float>(in.c % 1000) - 500);
      in.d = u(static_cast<float>(in.d % 1000) - 500);
    };
  };
  const auto from_f16 = [](uint64_t x) { return h(x); };
  const auto from_bf16 = [](uint64_t x) { return static_cast<double>(f((x & kLow) << 16)); };
  const auto to_f16 = +[](double x) { return half(x); };
  const auto to_bf16 = +[](double x) { return u(static_cast<float>(x)) >> 16; };
  const auto dot = [](double (*read)(uint64_t), bool accumulate) {
    return [read, accumulate](const In& in) {
      return u(static_cast<float>(read(in.a) * read(in.b) + read(in.a >> 16) * read(in.b >> 16)) +
               f(accumulate ? in.d : in.c));
    };
  };
  std::vector<Check> checks = {
      {"v_dot2_f32_f16 D, A, B, C", i64, i64, i64, As::f32, dot(+from_f16, false)},
      {"v_dot2c_f32_f16 D, A, B", i64, i64, i64, As::f32, dot(+from_f16, true)},
  };
  for (Check& check : checks) {
    check.prepare = integers(to_f16);
  }
  run_checks(checks, Target::gfx942);
  checks.push_back({"v_dot2_f32_bf16 D, A, B, C", i64, i64, i64, As::f32, dot(+from_bf16, false)});
  checks.push_back({"v_dot2c_f32_bf16 D, A, B", i64, i64, i64, As::f32, dot(+from_bf16, true)});
  for (size_t k = 2; k < 4; ++k) {
    checks[k].prepare = integers(to_bf16);
  }
  run_checks(checks, Target::gfx950);
}

/// fp8 and bf16 conversions as the executor passes them on: op_sel, neg, abs, SDWA.
TEST(IsaFloat, SmallFormats) {
  for (const Target target : cdna::kTargets) {
    const Format fp8 = fp8_of(target);
    const auto to_fp8 = [fp8](float x) -> uint64_t {
      const Real magnitude = std::fabs(static_cast<Real>(x));
      if (std::isnan(x)) {
        return fp8.specials == Format::unsigned_nan ? fp8.sign() : fp8.sign() - 1;
      }
      const Real r =
          std::isinf(x) ? kRealInfinity : round_to(magnitude, step_at(magnitude, fp8), Round::even);
      if (r > largest(fp8)) {
        return fp8.specials == Format::unsigned_nan ? fp8.sign() : fp8.sign() - 1;
      }
      const bool negative = std::signbit(x) && !(r == 0 && fp8.specials == Format::unsigned_nan);
      return code_of(r, negative, fp8);
    };
    const auto from_fp8 = [fp8](uint64_t code) {
      return u(static_cast<float>(decode(code & 255, fp8)));
    };
    std::vector<Check> checks = {
        {"v_cvt_pk_fp8_f32 D, A, B", f32, f32, none, As::bits,
         [=](const In& in) { return keep(to_fp8(f(in.a)) | to_fp8(f(in.b)) << 8, in.d); }},
        {"v_cvt_pk_fp8_f32 D, -A, |B| op_sel:[0,0,1]", f32, f32, none, As::bits,
         [=](const In& in) {
           return pack(in.d, to_fp8(-f(in.a)) | to_fp8(std::fabs(f(in.b))) << 8);
         }},
        {"v_cvt_f32_fp8 D, A", i32, none, none, As::f32,
         [=](const In& in) { return from_fp8(in.a); }},
        {"v_cvt_f32_fp8_sdwa D, A src0_sel:BYTE_2", i32, none, none, As::f32,
         [=](const In& in) { return from_fp8(in.a >> 16); }},
        {"v_cvt_pk_f32_fp8 D2, A", i32, none, none, As::pk_f32,
         [=](const In& in) { return pair(from_fp8(in.a), from_fp8(in.a >> 8)); }},
        {"v_cvt_pk_f32_fp8_sdwa D2, A src0_sel:WORD_1", i32, none, none, As::pk_f32,
         [=](const In& in) { return pair(from_fp8(in.a >> 16), from_fp8(in.a >> 24)); }},
    };
    if (target == Target::gfx950) {
      checks.push_back({"v_cvt_scalef32_f32_fp8 D, A, 1.0 op_sel:[1,1,0]", i32, none, none, As::f32,
                        [=](const In& in) { return from_fp8(in.a >> 24); }});
      checks.push_back({"v_cvt_scalef32_pk_fp8_f32 D, A, B, 2.0 op_sel:[0,0,0,1]", f32, f32, none,
                        As::bits, [=](const In& in) {
                          return pack(in.d, to_fp8(f(in.a) / 2) | to_fp8(f(in.b) / 2) << 8);
                        }});
      checks.push_back({"v_cvt_pk_bf16_f32 D, A, B", f32, f32, none, As::bits, [](const In& in) {
                          const auto bf16 = [](float x) -> uint64_t {
                            if (std::isnan(x)) {
                              return u(x) >> 16 | 0x40;
                            }
                            if (std::isinf(x)) {
                              return u(x) >> 16;
                            }
                            const Real m = std::fabs(static_cast<Real>(x));
                            const Real r = round_to(m, step_at(m, kBf16), Round::even);
                            return r > largest(kBf16) ? (std::signbit(x) ? 0xff80 : 0x7f80)
                                                      : code_of(r, std::signbit(x), kBf16);
                          };
                          return pack(bf16(f(in.a)), bf16(f(in.b)));
                        }});
    }
    run_checks(checks, target);
  }
}

}  // namespace
}  // namespace weft::sim::test
