#include "sim/convert.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/fp8.h"

namespace weft::sim {
namespace {

constexpr int kScaleBias = 127;
constexpr int kScaleNan = 255;

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

/// The next state of V_PRNG_B32.
uint32_t next_random(uint32_t x) { return x << 1 ^ ((x >> 31) != 0 ? 197 : 0); }

/// |x| of exponent `least` and more or below, in the code of a format with M mantissa bits whose
/// smallest normal number is 2^least: cut off after the random number is added below the last
/// place. The code goes on beyond the format's range. x is finite.
uint32_t stochastic_code(float x, uint32_t random, int mantissa_bits, int least) {
  const uint32_t magnitude = bits_of(x) & 0x7fffffff;
  const int field = static_cast<int>(magnitude >> 23);
  const int exponent = field == 0 ? -126 : field - 127;
  uint32_t significand = (magnitude & 0x7fffff) | (field == 0 ? 0 : 1U << 23);
  const int clamped = exponent < least ? least : exponent;
  significand = clamped - exponent > 31 ? 0 : significand >> (clamped - exponent);
  const int dropped = 23 - mantissa_bits;
  significand = (significand + (random >> (32 - dropped))) >> dropped;
  return (static_cast<uint32_t>(clamped - least) << mantissa_bits) + significand;
}

/// What an overflow becomes when it does not saturate: infinity, else NaN.
template <class F>
constexpr uint32_t kBeyond =
    F::kMaxCode + 1 < F::kNan&& F::kNan < F::kSign ? F::kMaxCode + 1 : F::kNan;
template <class F>
constexpr bool kHasInfinity = kBeyond<F> != F::kNan;

/// condition ? yes : no, which the compiler does not turn into a branch.
inline uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0U - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// The code that x rounds to, to nearest, ties to even. Without branches, so that loops over lanes
/// become vectors.
template <class F>
inline uint32_t nearest(float x, bool saturate) {
  constexpr int kDropped = 23 - F::kMantissaBits;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(F::kLeastExponent + 127) << 23;
  // Adding it leaves a denormal's places at the end of the mantissa, rounded.
  constexpr float kAligned = detail::power_of_two(F::kLeastExponent + kDropped);
  const uint32_t bits = bits_of(x);
  const uint32_t magnitude = bits & 0x7fffffff;
  const uint32_t rounded =
      magnitude + ((1U << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1) - kLeastNormal;
  const uint32_t normal = (rounded >> kDropped) + (1U << F::kMantissaBits);
  const uint32_t denormal = bits_of(float_of(magnitude) + kAligned) - bits_of(kAligned);
  uint32_t code = select(magnitude < kLeastNormal, denormal, normal);
  uint32_t sign = (bits >> 31) * F::kSign;
  const bool over = code > F::kMaxCode;
  code = select(over, saturate || !F::kHasNan ? F::kMaxCode : kBeyond<F>, code);
  if constexpr (!kHasInfinity<F> && F::kHasNan) {
    sign = select(over & !saturate, 0, sign);
  }
  if constexpr (F::kNan == F::kSign) {  // fnuz: no negative zero
    sign = select(code == 0, 0, sign);
  }
  constexpr uint32_t kOfNan = F::kHasNan ? F::kNan : F::kMaxCode;
  return select(magnitude > 0x7f800000, kOfNan, code | sign);
}

template <class F>
uint32_t stochastic(float x, uint32_t random, bool saturate) {
  if (!(std::fabs(x) <= 0x1.fffffep127f)) {  // NaN and infinity have nothing to round
    return nearest<F>(x, saturate);
  }
  const uint32_t code = stochastic_code(x, random, F::kMantissaBits, F::kLeastExponent);
  const bool negative = std::signbit(x);
  if (code > F::kMaxCode) {
    const bool special = F::kHasNan && !saturate;
    return special && !kHasInfinity<F>
               ? F::kNan
               : (negative ? F::kSign : 0U) | (special ? kBeyond<F> : F::kMaxCode);
  }
  const bool only_zero = code == 0 && F::kNan == F::kSign;  // fnuz has no other
  return (negative && !only_zero ? F::kSign : 0U) | code;
}

/// The formats of a word's parts.
struct AsF32 {
  static constexpr int kBits = 32;
  static float read(uint32_t bits) { return float_of(bits); }
  static uint32_t write(float x, bool /*clamp*/) { return bits_of(x); }
};
struct AsF16 {
  static constexpr int kBits = 16;
  static constexpr int kMantissaBits = 10;
  static constexpr int kLeastExponent = -14;
  static constexpr uint32_t kInfinity = 0x7c00;
  static float read(uint32_t bits) { return to_float(f16{static_cast<uint16_t>(bits)}); }
  /// `clamp`: infinity becomes the largest number.
  static uint32_t write(float x, bool clamp) {
    const uint16_t bits = to_f16(x).bits;
    return clamp && (bits & 0x7fff) == kInfinity ? bits - 1U : bits;
  }
};
struct AsBf16 {
  static constexpr int kBits = 16;
  static constexpr int kMantissaBits = 7;
  static constexpr int kLeastExponent = -126;
  static constexpr uint32_t kInfinity = 0x7f80;
  static float read(uint32_t bits) { return to_float(bf16{static_cast<uint16_t>(bits)}); }
  static uint32_t write(float x, bool /*clamp*/) { return to_bf16(x).bits; }
};

/// `bits` bits from bit `at` of a lane of registers.
uint32_t get(const Lanes* registers, int lane, int at, int bits) {
  uint64_t word = registers[at / 32][lane];
  if (at % 32 + bits > 32) {
    word |= static_cast<uint64_t>(registers[at / 32 + 1][lane]) << 32;
  }
  return static_cast<uint32_t>(word >> at % 32 & ((uint64_t{1} << bits) - 1));
}

void put(Lanes* registers, int lane, int at, int bits, uint32_t value) {
  const uint64_t mask = ((uint64_t{1} << bits) - 1) << at % 32;
  const uint64_t shifted = static_cast<uint64_t>(value) << at % 32;
  uint32_t& low = registers[at / 32][lane];
  low = static_cast<uint32_t>((low & ~mask) | shifted);
  if (at % 32 + bits > 32) {
    uint32_t& high = registers[at / 32 + 1][lane];
    high = static_cast<uint32_t>((high & ~(mask >> 32)) | shifted >> 32);
  }
}

/// What the elements are multiplied with: 2^(scale - 127), or its inverse. A product with it rounds
/// once, as scaling does.
template <bool kInverse>
void read_scales(const Lanes& operand, float* factors) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t code = operand[lane] >> 23 & 255;
    const uint32_t exponent = kInverse ? 2 * kScaleBias - code : code;
    const uint32_t bits = exponent == 0 ? 0x00400000U : exponent << 23;  // 2^-127 is a denormal
    factors[lane] = code == kScaleNan ? detail::kQuietNan : float_of(bits);
  }
}

/// The first of the destination's bits that a narrowing instruction writes.
template <class F, int kCount>
int first_bit(int op_sel) {
  return kCount == 32                  ? 0
         : kCount * F::kCodeBits == 16 ? (op_sel >> 3 & 1) * 16
                                       : (op_sel >> 2 & 3) * 8;
}

enum class Rounding : uint8_t { nearest, stochastic };
/// Where the elements come from: one operand, or element i from operand i % 2.
enum class Operands : uint8_t { one, two };

/// kCount elements of From to F. Operands in order: elements, the random number, the scale.
template <class F, class From, int kCount, Rounding kRounding, Operands kOperands, bool kScaled>
void narrow(const ConvertOperands& o) {
  constexpr int kSources = kOperands == Operands::two ? 2 : 1;
  constexpr bool kRandom = kRounding == Rounding::stochastic;
  uint32_t random[kLanes];
  if constexpr (kRandom) {
    std::memcpy(random, *o.src[kSources], sizeof(random));
  }
  float factor[kLanes];
  if constexpr (kScaled) {
    read_scales<true>(*o.src[kSources + (kRandom ? 1 : 0)], factor);
  }
  const bool saturate = o.fp16_ovfl;
  uint32_t codes[kCount][kLanes];
  for (int i = 0; i < kCount; ++i) {
    const int at = i / kSources * From::kBits;
    const uint32_t* words = o.src[i % kSources][at / 32];
    for (int lane = 0; lane < kLanes; ++lane) {
      float x = From::read(words[lane] >> at % 32);
      if constexpr (kScaled) {
        x *= factor[lane];
      }
      if constexpr (kRandom) {
        codes[i][lane] = stochastic<F>(x, random[lane], saturate);
        random[lane] = next_random(random[lane]);
      } else {
        codes[i][lane] = nearest<F>(x, saturate);
      }
    }
  }
  if constexpr (kCount <= 2) {  // within a word
    const int begin = first_bit<F, kCount>(o.op_sel);
    const uint32_t mask = ((1U << kCount * F::kCodeBits) - 1) << begin;
    for (int lane = 0; lane < kLanes; ++lane) {
      uint32_t word = codes[0][lane];
      if constexpr (kCount == 2) {
        word |= codes[1][lane] << F::kCodeBits;
      }
      o.d[0][lane] = (o.d[0][lane] & ~mask) | word << begin;
    }
  } else {
    for (int i = 0; i < kCount; ++i) {
      for (int lane = 0; lane < kLanes; ++lane) {
        put(o.d, lane, i * F::kCodeBits, F::kCodeBits, codes[i][lane]);
      }
    }
  }
}

/// Every code of a format as f32.
template <class F>
constexpr std::array<float, 1 << F::kCodeBits> kValues = [] {
  std::array<float, 1 << F::kCodeBits> values{};
  for (size_t code = 0; code < values.size(); ++code) {
    values[code] = to_float(F{static_cast<uint8_t>(code)});
  }
  return values;
}();

/// kCount elements of F to To.
template <class F, class To, int kCount, bool kScaled>
void widen(const ConvertOperands& o) {
  const int begin = !kScaled || kCount == 32      ? 0
                    : kCount * F::kCodeBits == 16 ? (o.op_sel & 1) * 16
                                                  : (o.op_sel & 3) * 8;
  float factor[kLanes];
  if constexpr (kScaled) {
    read_scales<false>(*o.src[1], factor);
  }
  uint32_t results[kCount][kLanes];  // all read before the destination, which may be a source
  for (int i = 0; i < kCount; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = kValues<F>[get(o.src[0], lane, begin + i * F::kCodeBits, F::kCodeBits)];
      const bool clamp = o.fp16_ovfl && std::isfinite(x);  // true infinities stay
      results[i][lane] = To::write(kScaled ? x * factor[lane] : x, clamp);
    }
  }
  // A single f16 goes to the half that OPSEL[3] names; the other is kept.
  const int to = kCount == 1 && To::kBits == 16 ? (o.op_sel >> 3 & 1) * 16 : 0;
  for (int i = 0; i < kCount; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      put(o.d, lane, to + i * To::kBits, To::kBits, results[i][lane]);
    }
  }
}

/// One f32 to a half of the destination, stochastically rounded.
template <class To>
void stochastic_half(const ConvertOperands& o) {
  const int to = (o.op_sel >> 3 & 1) * 16;
  for (int lane = 0; lane < kLanes; ++lane) {
    const float x = float_of(o.src[0][0][lane]);
    uint32_t code;
    if (!std::isfinite(x)) {
      code = To::write(x, false);
    } else {
      code = stochastic_code(x, o.src[1][0][lane], To::kMantissaBits, To::kLeastExponent);
      if (code >= To::kInfinity) {
        code = To::kInfinity - (o.fp16_ovfl && To::kMantissaBits == AsF16::kMantissaBits ? 1 : 0);
      }
      code |= std::signbit(x) ? 0x8000 : 0;
    }
    put(o.d, lane, to, 16, code);
  }
}

/// to_bf16() without branches.
inline uint32_t bf16_bits(uint32_t x) {
  const uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
  return select((x & 0x7fffffff) > 0x7f800000, x >> 16 | 0x40, rounded);
}

void pack_bf16(const ConvertOperands& o) {
  const uint32_t* low = o.src[0][0];
  const uint32_t* high = o.src[1][0];
  for (int lane = 0; lane < kLanes; ++lane) {
    o.d[0][lane] = bf16_bits(low[lane]) | bf16_bits(high[lane]) << 16;
  }
}

void unpack_bf16(const ConvertOperands& o) {
  for (int lane = 0; lane < kLanes; ++lane) {
    o.d[0][lane] = o.src[0][0][lane] << 16;
  }
}

void random_step(const ConvertOperands& o) {
  for (int lane = 0; lane < kLanes; ++lane) {
    o.d[0][lane] = next_random(o.src[0][0][lane]);
  }
}

/// fp8 and bf8 of a target.
template <void kGfx942(const ConvertOperands&), void kGfx950(const ConvertOperands&)>
void by_target(const ConvertOperands& o, Target target) {
  (target == Target::gfx942 ? kGfx942 : kGfx950)(o);
}
template <void kRun(const ConvertOperands&)>
void same(const ConvertOperands& o, Target /*target*/) {
  kRun(o);
}

template <class F>
constexpr auto kPackF32 = &narrow<F, AsF32, 2, Rounding::nearest, Operands::two, false>;
template <class F>
constexpr auto kStochasticF32 = &narrow<F, AsF32, 1, Rounding::stochastic, Operands::one, false>;

constexpr auto kNearest = Rounding::nearest;
constexpr auto kStochastic = Rounding::stochastic;
constexpr auto kOne = Operands::one;
constexpr auto kTwo = Operands::two;

constexpr ConvertOp kOps[] = {
    {"v_cvt_pk_fp8_f32", 1, {1, 1, 0}, true, true, by_target<kPackF32<e4m3fnuz>, kPackF32<e4m3fn>>},
    {"v_cvt_pk_bf8_f32", 1, {1, 1, 0}, true, true, by_target<kPackF32<e5m2fnuz>, kPackF32<e5m2>>},
    {"v_cvt_sr_fp8_f32",
     1,
     {1, 1, 0},
     true,
     true,
     by_target<kStochasticF32<e4m3fnuz>, kStochasticF32<e4m3fn>>},
    {"v_cvt_sr_bf8_f32",
     1,
     {1, 1, 0},
     true,
     true,
     by_target<kStochasticF32<e5m2fnuz>, kStochasticF32<e5m2>>},
    {"v_cvt_f32_fp8",
     1,
     {1, 0, 0},
     true,
     true,
     by_target<widen<e4m3fnuz, AsF32, 1, false>, widen<e4m3fn, AsF32, 1, false>>},
    {"v_cvt_f32_bf8",
     1,
     {1, 0, 0},
     true,
     true,
     by_target<widen<e5m2fnuz, AsF32, 1, false>, widen<e5m2, AsF32, 1, false>>},
    {"v_cvt_pk_f32_fp8",
     2,
     {1, 0, 0},
     true,
     true,
     by_target<widen<e4m3fnuz, AsF32, 2, false>, widen<e4m3fn, AsF32, 2, false>>},
    {"v_cvt_pk_f32_bf8",
     2,
     {1, 0, 0},
     true,
     true,
     by_target<widen<e5m2fnuz, AsF32, 2, false>, widen<e5m2, AsF32, 2, false>>},
    {"v_prng_b32", 1, {1, 0, 0}, false, true, same<random_step>},
    {"v_cvt_f32_bf16", 1, {1, 0, 0}, false, true, same<unpack_bf16>},
    {"v_cvt_pk_bf16_f32", 1, {1, 1, 0}, false, true, same<pack_bf16>},
    {"v_cvt_sr_f16_f32", 1, {1, 1, 0}, false, true, same<stochastic_half<AsF16>>},
    {"v_cvt_sr_bf16_f32", 1, {1, 1, 0}, false, true, same<stochastic_half<AsBf16>>},
// To a small format, scaled: name, format, from, elements, rounding, operands, registers of d, src.
#define WEFT_NARROW(NAME, F, FROM, COUNT, ROUNDING, OPERANDS, D, ...) \
  {"v_cvt_scalef32_" NAME,                                            \
   D,                                                                 \
   __VA_ARGS__,                                                       \
   false,                                                             \
   true,                                                              \
   same<narrow<F, FROM, COUNT, ROUNDING, OPERANDS, true>>},
    WEFT_NARROW("pk_fp8_f32", e4m3fn, AsF32, 2, kNearest, kTwo, 1, {1, 1, 1}) WEFT_NARROW(
        "pk_bf8_f32", e5m2, AsF32, 2, kNearest, kTwo, 1,
        {1,
         1, 1}) WEFT_NARROW("pk_fp8_f16", e4m3fn, AsF16, 2, kNearest, kOne, 1,
                            {1, 1,
                             0}) WEFT_NARROW("pk_bf8_f16", e5m2, AsF16, 2, kNearest, kOne, 1, {1, 1, 0})
        WEFT_NARROW("pk_fp8_bf16", e4m3fn, AsBf16, 2, kNearest, kOne, 1, {1, 1, 0}) WEFT_NARROW(
            "pk_bf8_bf16",
            e5m2, AsBf16, 2,
            kNearest, kOne,
            1,
            {1, 1, 0}) WEFT_NARROW("sr_fp8_f32", e4m3fn, AsF32, 1, kStochastic, kOne, 1, {1, 1, 1})
            WEFT_NARROW("sr_bf8_f32", e5m2, AsF32, 1, kStochastic, kOne, 1, {1, 1, 1}) WEFT_NARROW(
                "sr_fp8_f16", e4m3fn,
                AsF16, 1, kStochastic,
                kOne, 1,
                {1, 1,
                 1}) WEFT_NARROW("sr_bf8_f16", e5m2, AsF16, 1, kStochastic, kOne, 1, {1, 1, 1})
                WEFT_NARROW("sr_fp8_bf16", e4m3fn, AsBf16, 1, kStochastic, kOne, 1, {1, 1, 1}) WEFT_NARROW(
                    "sr_bf8_bf16",
                    e5m2, AsBf16, 1,
                    kStochastic,
                    kOne, 1,
                    {1, 1,
                     1}) WEFT_NARROW("pk_fp4_f32", e2m1, AsF32, 2, kNearest, kTwo, 1, {1, 1, 1})
                    WEFT_NARROW("pk_fp4_f16", e2m1, AsF16, 2, kNearest, kOne, 1, {1, 1, 0}) WEFT_NARROW(
                        "pk_fp4_bf16",
                        e2m1, AsBf16, 2,
                        kNearest, kOne,
                        1,
                        {1, 1,
                         0}) WEFT_NARROW("sr_pk_fp4_f32", e2m1, AsF32, 2, kStochastic, kOne, 1, {2, 1, 1})
                        WEFT_NARROW("sr_pk_fp4_f16", e2m1, AsF16, 2, kStochastic, kOne, 1, {1, 1, 1}) WEFT_NARROW(
                            "sr_pk_fp4_bf16",
                            e2m1, AsBf16, 2,
                            kStochastic,
                            kOne, 1,
                            {1, 1,
                             1}) WEFT_NARROW("2xpk16_fp6_f32", e2m3, AsF32, 32, kNearest, kTwo, 6, {16, 16, 1})
                            WEFT_NARROW("2xpk16_bf6_f32", e3m2, AsF32, 32, kNearest, kTwo, 6, {16, 16, 1}) WEFT_NARROW(
                                "pk32_fp6_f16",
                                e2m3,
                                AsF16, 32, kNearest,
                                kOne, 6,
                                {16, 1,
                                 0}) WEFT_NARROW("pk32_bf6_f16", e3m2, AsF16, 32, kNearest, kOne, 6, {16, 1, 0})
                                WEFT_NARROW("pk32_fp6_bf16", e2m3, AsBf16, 32, kNearest, kOne, 6, {16, 1, 0}) WEFT_NARROW(
                                    "pk32_bf6_bf16",
                                    e3m2, AsBf16, 32,
                                    kNearest, kOne,
                                    6,
                                    {16, 1,
                                     0}) WEFT_NARROW("sr_pk32_fp6_f32", e2m3, AsF32, 32, kStochastic, kOne, 6, {32, 1, 1})
                                    WEFT_NARROW("sr_pk32_bf6_f32", e3m2, AsF32, 32, kStochastic, kOne, 6, {32, 1, 1}) WEFT_NARROW(
                                        "sr_pk32_fp6_f16", e2m3,
                                        AsF16, 32, kStochastic,
                                        kOne, 6,
                                        {16, 1, 1})
                                        WEFT_NARROW(
                                            "sr_pk32_bf6_f16", e3m2,
                                            AsF16, 32, kStochastic,
                                            kOne, 6,
                                            {16, 1, 1})
                                            WEFT_NARROW(
                                                "sr_pk32_fp6_bf16",
                                                e2m3, AsBf16, 32,
                                                kStochastic,
                                                kOne, 6,
                                                {16, 1, 1})
                                                WEFT_NARROW(
                                                    "sr_pk32_bf6_bf16",
                                                    e3m2, AsBf16, 32, kStochastic, kOne,
                                                    6, {16, 1, 1})
#undef WEFT_NARROW
// From a small format, scaled: name, format, to, elements, registers of d and of the elements.
#define WEFT_WIDEN(NAME, F, TO, COUNT, D, SRC) \
  {"v_cvt_scalef32_" NAME, D, {SRC, 1, 0}, false, true, same<widen<F, TO, COUNT, true>>},
                                                    WEFT_WIDEN("f32_fp8", e4m3fn, AsF32, 1, 1, 1) WEFT_WIDEN(
                                                        "f32_bf8",
                                                        e5m2, AsF32,
                                                        1, 1,
                                                        1) WEFT_WIDEN("f16_fp8", e4m3fn, AsF16, 1, 1, 1)
                                                        WEFT_WIDEN("f16_bf8", e5m2, AsF16, 1, 1, 1) WEFT_WIDEN(
                                                            "pk_f32_fp8",
                                                            e4m3fn,
                                                            AsF32, 2, 2,
                                                            1) WEFT_WIDEN("pk_f32_bf8", e5m2, AsF32, 2, 2, 1)
                                                            WEFT_WIDEN("pk_f16_fp8", e4m3fn, AsF16, 2, 1, 1) WEFT_WIDEN(
                                                                "pk_f16_bf8",
                                                                e5m2, AsF16,
                                                                2, 1,
                                                                1) WEFT_WIDEN("pk_bf16_fp8", e4m3fn, AsBf16, 2, 1, 1)
                                                                WEFT_WIDEN("pk_bf16_bf8", e5m2, AsBf16, 2, 1, 1) WEFT_WIDEN(
                                                                    "pk_f32_fp4", e2m1,
                                                                    AsF32, 2, 2, 1)
                                                                    WEFT_WIDEN("pk_f16_fp4", e2m1,
                                                                               AsF16,
                                                                               2, 1, 1)
                                                                        WEFT_WIDEN("pk_bf16_"
                                                                                   "fp4",
                                                                                   e2m1, AsBf16,
                                                                                   2, 1, 1)
                                                                            WEFT_WIDEN(
                                                                                "pk32_f32_fp6",
                                                                                e2m3, AsF32, 32, 32,
                                                                                6)
                                                                                WEFT_WIDEN(
                                                                                    "pk32_f32_bf6",
                                                                                    e3m2, AsF32, 32,
                                                                                    32,
                                                                                    6)
                                                                                    WEFT_WIDEN(
                                                                                        "pk32_f16_"
                                                                                        "fp6",
                                                                                        e2m3, AsF16,
                                                                                        32,
                                                                                        16,
                                                                                        6)
                                                                                        WEFT_WIDEN(
                                                                                            "pk32_"
                                                                                            "f16_"
                                                                                            "bf6",
                                                                                            e3m2,
                                                                                            AsF16,
                                                                                            32,
                                                                                            16,
                                                                                            6)
                                                                                            WEFT_WIDEN(
                                                                                                "pk"
                                                                                                "32"
                                                                                                "_"
                                                                                                "bf"
                                                                                                "16"
                                                                                                "_"
                                                                                                "fp"
                                                                                                "6",
                                                                                                e2m3,
                                                                                                AsBf16,
                                                                                                32,
                                                                                                16,
                                                                                                6)
                                                                                                WEFT_WIDEN(
                                                                                                    "pk"
                                                                                                    "32"
                                                                                                    "_b"
                                                                                                    "f1"
                                                                                                    "6_"
                                                                                                    "bf"
                                                                                                    "6",
                                                                                                    e3m2,
                                                                                                    AsBf16,
                                                                                                    32,
                                                                                                    16,
                                                                                                    6)
#undef WEFT_WIDEN
};

}  // namespace

const ConvertOp* find_convert_op(std::string_view mnemonic, Target target) {
  for (const ConvertOp& op : kOps) {
    if (op.name == mnemonic && (target == Target::gfx942 ? op.on_gfx942 : op.on_gfx950)) {
      return &op;
    }
  }
  return nullptr;
}

std::span<const ConvertOp> convert_ops() { return kOps; }

}  // namespace weft::sim
