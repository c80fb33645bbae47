// linear and gated_linear with weights in e4m3fn: every way to scale them and to round what they
// meet, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"
#include "ops/linear/test_operands.h"

namespace weft {
namespace {

/// [rows, columns] of random codes, subnormals and both zeros among them, and scales whose order
/// matters: they differ by up to 16.
struct Fp8Values {
  Fp8Values(int64_t rows, int64_t columns, Scaling scaling, std::mt19937& random)
      : stride(columns + 5), codes(static_cast<size_t>(rows * stride)) {
    for (e4m3fn& code : codes) {
      code.bits = static_cast<uint8_t>(random());
      code.bits &= (code.bits & 0x7f) == e4m3fn::kNan ? 0x80 : 0xff;
    }
    const int64_t blocks = scale_blocks(columns);
    values.resize(static_cast<size_t>(scaling == Scaling::block ? scale_blocks(rows) * blocks
                                      : scaling == Scaling::row ? rows
                                                                : 1));
    std::uniform_real_distribution<float> power(-12, -8);
    for (float& value : values) {
      value = std::exp2(power(random));
    }
    scales = {scaling, values.data(), scaling == Scaling::block ? blocks : 0};
  }
  ConstMatrix matrix() const { return {codes.data(), DType::e4m3fn, stride}; }
  Fp8Values magnitudes() const {
    Fp8Values result = *this;
    for (e4m3fn& code : result.codes) {
      code.bits &= 0x7f;
    }
    result.scales.data = result.values.data();
    return result;
  }

  int64_t stride;
  std::vector<e4m3fn> codes;
  std::vector<float> values;
  WeightScales scales;
};

constexpr Scaling kScalings[] = {Scaling::tensor, Scaling::row, Scaling::block};
constexpr Fp8Rounding kRoundings[] = {
    {},
    {.scaling = Scaling::block},
    {.scaling = Scaling::row, .largest = 1.5F, .least_scale = 0x1p-18F},
    {.scaling = Scaling::tensor, .scale = 1.0F / 200}};

std::string describe(cpu::Isa isa, Scaling scaling, const Fp8Rounding& rounding, int64_t rows,
                     int64_t n, int64_t k, DType a) {
  return std::string(name_of(isa)) + " scaling " + std::to_string(static_cast<int>(scaling)) +
         " rounding " + std::to_string(static_cast<int>(rounding.scaling)) + " rows " +
         std::to_string(rows) + " n " + std::to_string(n) + " k " + std::to_string(k) + " a " +
         std::string(name_of(a));
}

/// What many rows of bf16 may be off besides: scaled weights are rounded to bf16.
double weights_error(DType a, const Fp8Rounding& rounding, int64_t rows, double magnitude) {
  const bool rounded = a == DType::bf16 && rounding.scaling == Scaling::none && rows > 8;
  return rounded ? 0x1p-8 * magnitude : 0;
}

class Fp8Linear : public Products {
 protected:
  void check(Scaling scaling, const Fp8Rounding& rounding, int64_t rows, int64_t n, int64_t k,
             DType a_type) {
    const Values a(rows, k, a_type, 1, random_);
    const Fp8Values w(n, k, scaling, random_);
    LinearArgs args{.a = a.matrix(),
                    .w = w.matrix(),
                    .bias = {},
                    .n = n,
                    .k = k,
                    .out = {},
                    .scales = w.scales,
                    .rounding = rounding};
    std::vector<double> expected(static_cast<size_t>(rows * n));
    std::vector<double> magnitude = expected;
    reference::linear(args, {0, rows}, {0, n}, expected.data());
    const Values positive = a.magnitudes();
    const Fp8Values positive_weights = w.magnitudes();
    LinearArgs absolute = args;
    absolute.a = positive.matrix();
    absolute.w = positive_weights.matrix();
    reference::linear(absolute, {0, rows}, {0, n}, magnitude.data());
    for (const cpu::Isa isa : available()) {
      SCOPED_TRACE(describe(isa, scaling, rounding, rows, n, k, a_type));
      cpu::force_isa(isa);
      Output out(rows, n);
      args.out = out.matrix();
      Scratch scratch(cpu::linear_scratch_bytes(args, rows));
      cpu::linear(args, {0, rows}, {0, n}, scratch.span());
      EXPECT_TRUE(out.only({0, rows}, {0, n}));
      for (int64_t i = 0; i < rows * n; ++i) {
        const double size = magnitude[static_cast<size_t>(i)];
        ASSERT_LE(std::fabs(out.get(i / n, i % n) - expected[static_cast<size_t>(i)]),
                  sum_tolerance(k, 2 * size) + weights_error(a_type, rounding, rows, size))
            << i / n << ", " << i % n;
      }
    }
  }
};

TEST_F(Fp8Linear, MatchesTheDefinition) {
  for (const Scaling scaling : kScalings) {
    for (const Fp8Rounding& rounding : kRoundings) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1},
                                 {5, 127},
                                 {130, 128},
                                 {70, 129},
                                 {33, 300},
                                 {257, 270}}) {
        for (const int64_t rows : {1, 3, 8, 9, 20}) {
          check(scaling, rounding, rows, n, k, DType::f32);
        }
        check(scaling, rounding, 13, n, k, DType::bf16);
        check(scaling, rounding, 2, n, k, DType::bf16);
      }
    }
  }
}

/// Long rows: several streams, several panels of k.
TEST_F(Fp8Linear, WithLongRows) {
  for (const Scaling scaling : kScalings) {
    for (const int64_t k : {2112, 4224}) {
      check(scaling, {}, 1, 20, k, DType::f32);
      check(scaling, {.scaling = Scaling::block}, 10, 20, k, DType::f32);
      check(scaling, {}, 10, 20, k, DType::bf16);
    }
  }
}

/// Any split of rows and columns gives the same bits.
TEST_F(Fp8Linear, IsIndependentOfRanges) {
  constexpr int64_t kRows = 12;
  constexpr int64_t kColumns = 150;
  constexpr int64_t kK = 300;
  const Values a(kRows, kK, DType::f32, 1, random_);
  const Fp8Values w(kColumns, kK, Scaling::block, random_);
  LinearArgs args{.a = a.matrix(),
                  .w = w.matrix(),
                  .bias = {},
                  .n = kColumns,
                  .k = kK,
                  .out = {},
                  .scales = w.scales,
                  .rounding = {.scaling = Scaling::row}};
  const auto run = [&](Range rows, Range columns) {
    Output out(kRows, kColumns);
    args.out = out.matrix();
    Scratch scratch(cpu::linear_scratch_bytes(args, rows.size()));
    cpu::linear(args, rows, columns, scratch.span());
    EXPECT_TRUE(out.only(rows, columns));
    return out;
  };
  for (const cpu::Isa isa : available()) {
    cpu::force_isa(isa);
    for (const int64_t most : {8, 12}) {
      const Output whole = run({0, most}, {0, kColumns});
      for (const Range rows : {Range{most == 8 ? 2 : 1, most}, Range{0, most == 8 ? 1 : 9}}) {
        for (const Range columns : {Range{0, 1}, Range{127, 129}, Range{60, 150}}) {
          const Output part = run(rows, columns);
          for (int64_t r = rows.begin; r < rows.end; ++r) {
            for (int64_t c = columns.begin; c < columns.end; ++c) {
              ASSERT_EQ(part.get(r, c), whole.get(r, c)) << name_of(isa) << " " << r << ", " << c;
            }
          }
        }
      }
    }
  }
}

TEST_F(Fp8Linear, GateAndUpHaveScalesOfTheirOwn) {
  constexpr int64_t kColumns = 140;
  constexpr int64_t kK = 260;
  for (const Scaling scaling : kScalings) {
    for (const Fp8Rounding& rounding : kRoundings) {
      for (const int64_t rows : {1, 5, 11}) {
        const Values a(rows, kK, DType::f32, 1, random_);
        const Fp8Values gate(kColumns, kK, scaling, random_);
        const Fp8Values up(kColumns, kK, scaling, random_);
        GatedLinearArgs args{.a = a.matrix(),
                             .gate = gate.matrix(),
                             .up = up.matrix(),
                             .gate_bias = {},
                             .up_bias = {},
                             .n = kColumns,
                             .k = kK,
                             .out = {},
                             .gate_scales = gate.scales,
                             .up_scales = up.scales,
                             .rounding = rounding};
        std::vector<double> expected(static_cast<size_t>(rows * kColumns));
        reference::gated_linear(args, {0, rows}, {0, kColumns}, expected.data());
        for (const cpu::Isa isa : available()) {
          SCOPED_TRACE(describe(isa, scaling, rounding, rows, kColumns, kK, DType::f32));
          cpu::force_isa(isa);
          Output out(rows, kColumns);
          args.out = out.matrix();
          Scratch scratch(cpu::gated_linear_scratch_bytes(args, rows));
          cpu::gated_linear(args, {0, rows}, {0, kColumns}, scratch.span());
          for (int64_t i = 0; i < rows * kColumns; ++i) {
            // Sums of size 50 or less with errors of 2^-18 or so, multiplied with another.
            ASSERT_NEAR(out.get(i / kColumns, i % kColumns), expected[static_cast<size_t>(i)], 0.1)
                << i;
          }
        }
      }
    }
  }
}

/// A scale of the wrong block, of 128 rows or of 128 elements, is noticed.
TEST_F(Fp8Linear, ToleranceNoticesAScaleOfAnotherBlock) {
  const Values a(1, 256, DType::f32, 1, random_);
  const Fp8Values w(256, 256, Scaling::block, random_);
  Fp8Values wrong = w;
  wrong.scales.data = wrong.values.data();
  std::swap(wrong.values[1], wrong.values[2]);
  std::vector<double> right_sums(256);
  std::vector<double> wrong_sums(256);
  LinearArgs args{.a = a.matrix(),
                  .w = w.matrix(),
                  .bias = {},
                  .n = 256,
                  .k = 256,
                  .out = {},
                  .scales = w.scales};
  reference::linear(args, {0, 1}, {0, 256}, right_sums.data());
  args.scales = wrong.scales;
  reference::linear(args, {0, 1}, {0, 256}, wrong_sums.data());
  for (size_t c = 0; c < 256; ++c) {
    EXPECT_GT(std::fabs(right_sums[c] - wrong_sums[c]), 1e-3 * std::fabs(right_sums[c])) << c;
  }
}

}  // namespace
}  // namespace weft
