#include "sim/convert.h"

#include <bit>
#include <cmath>

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

/// Where rounding to nearest leaves the finite numbers.
template <class F>
bool overflows(float magnitude) {
  constexpr float kHalfStep = (kMax<F> - to_float(F{F::kMaxCode - 1})) / 2;
  return (F::kMaxCode & 1) != 0 ? magnitude >= kMax<F> + kHalfStep
                                : magnitude > kMax<F> + kHalfStep;
}

/// What an overflow becomes when it does not saturate.
template <class F>
uint8_t beyond(bool negative) {
  if constexpr (F::kMaxCode + 1 < F::kNan && F::kNan < F::kSign) {  // ieee: infinity
    return static_cast<uint8_t>((negative ? F::kSign : 0) | (F::kMaxCode + 1));
  }
  return F::kNan;
}

template <class F>
uint8_t nearest(float x, bool saturate) {
  if (!saturate && F::kHasNan && overflows<F>(std::fabs(x))) {
    return beyond<F>(x < 0);
  }
  return saturate_to<F>(x).bits;
}

template <class F>
uint8_t stochastic(float x, uint32_t random, bool saturate) {
  if (!(std::fabs(x) <= 0x1.fffffep127f)) {  // NaN and infinity have nothing to round
    return nearest<F>(x, saturate);
  }
  const uint32_t code = stochastic_code(x, random, F::kMantissaBits, F::kLeastExponent);
  const bool negative = std::signbit(x);
  if (code > F::kMaxCode) {
    return saturate || !F::kHasNan ? static_cast<uint8_t>((negative ? F::kSign : 0) | F::kMaxCode)
                                   : beyond<F>(negative);
  }
  const bool only_zero = code == 0 && F::kNan == F::kSign;  // fnuz has no other
  return static_cast<uint8_t>((negative && !only_zero ? F::kSign : 0) | code);
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

int scale_of(const Lanes* scale, int lane) {
  return scale == nullptr ? kScaleBias : static_cast<int>((*scale)[lane] >> 23 & 255);
}
/// x * 2^exponent, rounded once.
float scaled(float x, int scale, int exponent) {
  return scale == kScaleNan ? detail::kQuietNan : exponent == 0 ? x : std::ldexp(x, exponent);
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
  const Lanes* random_operand = kRounding == Rounding::stochastic ? o.src[kSources] : nullptr;
  const Lanes* scale_operand =
      kScaled ? o.src[kSources + (kRounding == Rounding::stochastic ? 1 : 0)] : nullptr;
  const int begin = first_bit<F, kCount>(o.op_sel);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int scale = scale_of(scale_operand, lane);
    uint32_t random = random_operand == nullptr ? 0 : (*random_operand)[lane];
    uint8_t codes[kCount];
    for (int i = 0; i < kCount; ++i) {
      const uint32_t bits = get(o.src[i % kSources], lane, i / kSources * From::kBits, From::kBits);
      const float x = scaled(From::read(bits), scale, kScaleBias - scale);
      if constexpr (kRounding == Rounding::stochastic) {
        codes[i] = stochastic<F>(x, random, o.fp16_ovfl);
        random = next_random(random);
      } else {
        codes[i] = nearest<F>(x, o.fp16_ovfl);
      }
    }
    for (int i = 0; i < kCount; ++i) {
      put(o.d, lane, begin + i * F::kCodeBits, F::kCodeBits, codes[i]);
    }
  }
}

/// kCount elements of F to To.
template <class F, class To, int kCount, bool kScaled>
void widen(const ConvertOperands& o) {
  const int begin = !kScaled || kCount == 32      ? 0
                    : kCount * F::kCodeBits == 16 ? (o.op_sel & 1) * 16
                                                  : (o.op_sel & 3) * 8;
  // A single f16 goes to the half that OPSEL[3] names; the other is kept.
  const int to = kCount == 1 && To::kBits == 16 ? (o.op_sel >> 3 & 1) * 16 : 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int scale = scale_of(kScaled ? o.src[1] : nullptr, lane);
    uint8_t codes[kCount];
    for (int i = 0; i < kCount; ++i) {
      codes[i] = static_cast<uint8_t>(get(o.src[0], lane, begin + i * F::kCodeBits, F::kCodeBits));
    }
    for (int i = 0; i < kCount; ++i) {
      const float x = to_float(F{codes[i]});
      const bool clamp = o.fp16_ovfl && std::isfinite(x);  // true infinities stay
      put(o.d, lane, to + i * To::kBits, To::kBits,
          To::write(scaled(x, scale, scale - kScaleBias), clamp));
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

void pack_bf16(const ConvertOperands& o) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t low = to_bf16(float_of(o.src[0][0][lane])).bits;
    const uint32_t high = to_bf16(float_of(o.src[1][0][lane])).bits;
    o.d[0][lane] = low | high << 16;
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
