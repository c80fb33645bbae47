// Conversions against a model from the manuals' tables and pseudocode: every code of the small
// formats, ties, denormals, overflows, and where in the registers results go.
#include "sim/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "sim/test_formats.h"

namespace weft::sim {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the model

constexpr Target kTargets[] = {Target::gfx942, Target::gfx950};

/// What the instruction's name says: v_cvt_[scalef32_][sr_][count]to_from.
struct Parsed {
  bool scaled = false;
  bool stochastic = false;
  int count = 1;
  bool two_operands = false;  ///< elements alternate between them
  Format to = kF32;
  Format from = kF32;
};

Format format_named(std::string_view name, Target target) {
  return name == "fp8"    ? fp8_of(target)
         : name == "bf8"  ? bf8_of(target)
         : name == "fp6"  ? kFp6
         : name == "bf6"  ? kBf6
         : name == "fp4"  ? kFp4
         : name == "f16"  ? kF16
         : name == "bf16" ? kBf16
                          : kF32;
}

Parsed parse(std::string_view name, Target target) {
  Parsed parsed;
  const auto skip = [&](std::string_view prefix) {
    const bool there = name.starts_with(prefix);
    name.remove_prefix(there ? prefix.size() : 0);
    return there;
  };
  skip("v_cvt_");
  parsed.scaled = skip("scalef32_");
  parsed.stochastic = skip("sr_");
  if (skip("2xpk16_")) {
    parsed.count = 32;
    parsed.two_operands = true;
  } else if (skip("pk32_")) {
    parsed.count = 32;
  } else if (skip("pk_")) {
    parsed.count = 2;
  }
  const size_t bar = name.find('_');
  parsed.to = format_named(name.substr(0, bar), target);
  parsed.from = format_named(name.substr(bar + 1), target);
  if (parsed.count == 2 && parsed.from.width() == 32 && !parsed.stochastic) {
    parsed.two_operands = true;
  }
  return parsed;
}

/// The code that converting x gives, for every rule of the manuals' section on small formats.
uint64_t converted(Real x, const Parsed& p, uint32_t random, bool fp16_ovfl) {
  const Format& f = p.to;
  const bool negative = std::signbit(x);
  const uint64_t sign = negative ? f.sign() : 0;
  const bool narrow = f.width() < 16;
  const uint64_t largest_code = code_of(largest(f), false, f);
  if (std::isnan(x)) {
    switch (f.specials) {
      case Format::ieee:  // any NaN
      case Format::nan_only:
        return f.sign() - 1;
      case Format::unsigned_nan:
        return f.sign();
      case Format::finite:
        return largest_code;
    }
  }
  const auto overflow = [&]() -> uint64_t {
    // Table "CVT_*FP8_F32 and CVT_*BF8_F32 FP16_OVFL rule"; fp4 and fp6 saturate. FP16_OVFL clamps
    // f16 but keeps true infinities; f32 and bf16 know no clamp.
    const bool clamp =
        f.specials == Format::finite ||
        (narrow ? fp16_ovfl : fp16_ovfl && f.mantissa_bits == 10 && std::isfinite(x));
    if (clamp) {
      return sign | largest_code;
    }
    switch (f.specials) {
      case Format::ieee:
        return sign | (largest_code + 1);
      case Format::unsigned_nan:
        return f.sign();
      default:
        return f.sign() - 1;
    }
  };
  if (std::isinf(x)) {
    return overflow();
  }
  const Real magnitude = std::fabs(x);
  const Real step = step_at(magnitude, f);
  Real rounded = 0;
  if (p.stochastic) {
    // The random number's high bits, as many as a normal f32 has beyond the format, are a fraction
    // of a step; bits of x below those are cut first.
    const Real fraction = std::ldexp(Real{1}, f.mantissa_bits - 23);
    const auto bits = static_cast<Real>(random >> (32 - (23 - f.mantissa_bits)));
    rounded =
        std::floor(std::floor(magnitude / step / fraction) * fraction + bits * fraction) * step;
  } else {
    rounded = round_to(magnitude, step, Round::even);
  }
  if (rounded > largest(f)) {
    return overflow();
  }
  if (rounded == 0 && f.specials == Format::unsigned_nan) {
    return 0;
  }
  return code_of(rounded, negative, f);
}

bool is_nan(uint64_t code, const Format& f) { return std::isnan(decode(code, f)); }

/// V_PRNG_B32's pseudocode.
uint32_t prng(uint32_t in) { return (in << 1) ^ ((in & 0x80000000U) != 0 ? 197U : 0U); }

uint64_t get(const Lanes* registers, int lane, int bit, int bits) {
  uint64_t value = 0;
  for (int i = 0; i < bits; ++i) {
    value |= uint64_t{registers[(bit + i) / 32][lane] >> (bit + i) % 32 & 1} << i;
  }
  return value;
}
void set(Lanes* registers, int lane, int bit, int bits, uint64_t value) {
  for (int i = 0; i < bits; ++i) {
    uint32_t& word = registers[(bit + i) / 32][lane];
    const uint32_t mask = 1U << (bit + i) % 32;
    word = (value >> i & 1) != 0 ? word | mask : word & ~mask;
  }
}

/// f32 numbers at which a conversion to `f` can go wrong.
std::vector<uint32_t> interesting_f32(const Format& f) {
  std::vector<uint32_t> values = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                  0xffc12345, 0x7f800001, 1,          0x80000001, 0x007fffff,
                                  0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000};
  const uint64_t codes = f.width() <= 8 ? f.sign() : 0;
  for (uint64_t code = 0; code < codes; ++code) {
    const Real x = decode(code, f);
    if (!std::isfinite(x)) {
      continue;
    }
    const Real step = step_at(x, f);
    for (const Real y : {x, x + step / 2, x + step / 4}) {  // the number, a tie, neither
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(y));
      for (const uint32_t near : {bits, bits + 1, bits == 0 ? 0 : bits - 1}) {
        values.push_back(near);
        values.push_back(near | 0x80000000);
      }
    }
  }
  return values;
}

/// Runs one conversion on chosen and random elements, all of a register's lanes at a time, and
/// holds every bit of the destination against the model.
void check(const ConvertOp& op, Target target, bool fp16_ovfl, int op_sel, std::mt19937& random,
           size_t& next, const std::vector<uint32_t>& values) {
  const Parsed p = parse(op.name, target);
  Lanes src[3][32];
  Lanes d[32];
  Lanes want[32];
  for (int r = 0; r < 32; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      for (auto& operand : src) {
        operand[r][lane] = static_cast<uint32_t>(random());
      }
      d[r][lane] = want[r][lane] = static_cast<uint32_t>(random());
      // Three quarters interesting numbers.
      for (int operand = 0; operand < (p.two_operands ? 2 : 1); ++operand) {
        if (p.from.width() == 32 && random() % 4 != 0) {
          src[operand][r][lane] = values[next++ % values.size()];
        }
      }
    }
  }
  const int sources = p.two_operands ? 2 : 1;
  const int random_at = sources;
  const int scale_at = sources + (p.stochastic ? 1 : 0);
  for (int lane = 0; lane < kLanes; ++lane) {
    if (p.scaled) {  // mostly near 1; sometimes any; the mantissa and sign do not matter
      const uint32_t kind = random() % 8;
      const uint32_t exponent = kind == 0 ? random() % 256 : 127 + random() % 17 - 8;
      src[scale_at][0][lane] = (src[scale_at][0][lane] & 0x807fffff) | exponent << 23;
    }
  }

  // Where the instruction's text puts the elements.
  const int to_width = p.to.width();
  const int from_width = p.from.width();
  int to_bit = 0;
  int from_bit = 0;
  if (p.count < 32 && to_width < 16) {
    to_bit = to_width * p.count == 16 ? (op_sel >> 3) * 16 : (op_sel >> 2) * 8;
  } else if (p.count == 1 && to_width == 16) {
    to_bit = (op_sel >> 3) * 16;
  }
  if (p.scaled && p.count < 32 && from_width < 16) {
    from_bit = from_width * p.count == 16 ? (op_sel & 1) * 16 : (op_sel & 3) * 8;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    uint32_t seed = p.stochastic ? src[random_at][0][lane] : 0;
    for (int i = 0; i < p.count; ++i) {
      const uint64_t code = p.two_operands
                                ? src[i % 2][i / 2][lane]
                                : get(src[0], lane, from_bit + i * from_width, from_width);
      Real x = decode(code, p.from);
      if (p.scaled) {
        const int exponent = static_cast<int>(src[scale_at][0][lane] >> 23 & 255);
        const bool down = to_width < 16;
        x = exponent == 255 ? kRealNan : std::ldexp(x, down ? 127 - exponent : exponent - 127);
      }
      const uint64_t result = converted(x, p, seed, fp16_ovfl);
      seed = prng(seed);
      set(want, lane, to_bit + i * to_width, to_width, result);
    }
  }

  ConvertOperands operands{
      .d = d, .src = {}, .op_sel = static_cast<uint8_t>(op_sel), .fp16_ovfl = fp16_ovfl};
  for (int i = 0; i < 3 && op.src_regs[i] != 0; ++i) {
    operands.src[i] = src[i];
  }
  op.run(operands, target);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < p.count; ++i) {  // any NaN will do where the format has several
      const int bit = to_bit + i * to_width;
      if (is_nan(get(want, lane, bit, to_width), p.to) &&
          is_nan(get(d, lane, bit, to_width), p.to)) {
        set(d, lane, bit, to_width, get(want, lane, bit, to_width));
      }
    }
    for (int r = 0; r < 32; ++r) {
      ASSERT_EQ(d[r][lane], want[r][lane])
          << op.name << " register " << r << " lane " << lane << std::hex << " of "
          << src[0][0][lane] << ' ' << src[1][0][lane] << ' ' << src[2][0][lane] << " op_sel "
          << op_sel << " ovfl " << fp16_ovfl;
    }
  }
}

TEST(Convert, IsThatOfTheManuals) {
  std::mt19937 random(20240605);
  for (const Target target : kTargets) {
    for (const ConvertOp& op : convert_ops()) {
      if (op.name == "v_prng_b32" || find_convert_op(op.name, target) == nullptr) {
        continue;
      }
      const std::vector<uint32_t> values = interesting_f32(parse(op.name, target).to);
      size_t next = 0;
      for (int round = 0; round < 32; ++round) {
        check(op, target, (round & 1) != 0, round / 2 % 16, random, next, values);
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(Convert, RandomNumbersAreTheManuals) {
  const ConvertOp* op = find_convert_op("v_prng_b32", Target::gfx950);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(find_convert_op("v_prng_b32", Target::gfx942), nullptr);
  std::mt19937 random(20240606);
  Lanes in;
  Lanes out;
  for (uint32_t& x : in) {
    x = static_cast<uint32_t>(random());
  }
  in[0] = 0;
  in[1] = 0x80000000;
  op->run({.d = &out, .src = {&in, nullptr, nullptr}, .op_sel = 0, .fp16_ovfl = false},
          Target::gfx950);
  for (int lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(out[lane], prng(in[lane]));
  }
  EXPECT_EQ(out[1], 197U);
}

TEST(Convert, KnownValues) {
  const auto pack = [](std::string_view name, Target target, float x, bool ovfl = false) {
    Lanes a;
    Lanes d = {};
    for (uint32_t& v : a) {
      v = std::bit_cast<uint32_t>(x);
    }
    find_convert_op(name, target)
        ->run({.d = &d, .src = {&a, &a, nullptr}, .op_sel = 0, .fp16_ovfl = ovfl}, target);
    return d[0] & 0xff;
  };
  using enum Target;
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx942, 1), 0x40U);    // bias 8
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, 1), 0x38U);    // bias 7
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx942, 240), 0x7fU);  // the largest
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, 448), 0x7eU);
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, 464), 0x7eU);  // a tie, to even
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, 465), 0x7fU);  // NaN
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, 465, true), 0x7eU);
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx942, 248), 0x80U);    // a tie, to 256: NaN
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx942, -0.0F), 0x00U);  // no -0
  EXPECT_EQ(pack("v_cvt_pk_fp8_f32", gfx950, -0.0F), 0x80U);
  EXPECT_EQ(pack("v_cvt_pk_bf8_f32", gfx950, infinity), 0x7cU);
  EXPECT_EQ(pack("v_cvt_pk_bf8_f32", gfx950, infinity, true), 0x7bU);
  EXPECT_EQ(pack("v_cvt_pk_bf8_f32", gfx942, -infinity), 0x80U);
  EXPECT_EQ(pack("v_cvt_pk_bf8_f32", gfx942, -infinity, true), 0xffU);
}

}  // namespace
}  // namespace weft::sim
