#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"

// Tests of linear and gated_linear, which share their kernels.
namespace weft {
namespace {

/// Fresh normal values in a format, with a row stride above the row's length; what lies between
/// rows is NaN, so that a kernel that reads it shows.
struct Values {
  Values(int64_t rows, int64_t columns, DType type, float scale, std::mt19937& random)
      : rows(rows), columns(columns), stride(columns + (columns % 2 == 0 ? 4 : 3)), type(type) {
    std::normal_distribution<float> normal(0, scale);
    bytes.resize(rows * stride * size_of(type));
    for (int64_t i = 0; i < rows * stride; ++i) {
      set(i, i % stride < columns ? normal(random) : std::numeric_limits<float>::quiet_NaN());
    }
  }
  void set(int64_t i, float x) {
    with_type(type, [&](auto t) {
      auto* data = reinterpret_cast<decltype(t)*>(bytes.data());
      if constexpr (std::is_same_v<decltype(t), float>) {
        data[i] = x;
      } else if constexpr (std::is_same_v<decltype(t), bf16>) {
        data[i] = to_bf16(x);
      } else {
        data[i] = to_f16(x);
      }
    });
  }
  double get(int64_t r, int64_t c) const { return element(matrix(), r, c); }
  ConstMatrix matrix() const { return {bytes.data(), type, stride}; }
  ConstVector vector() const { return {bytes.data(), type}; }
  /// The same values without signs: what the error of a sum is measured against.
  Values magnitudes() const {
    Values result = *this;
    for (int64_t i = 0; i < rows * stride; ++i) {
      result.set(i, static_cast<float>(std::fabs(element(bytes.data(), type, i))));
    }
    return result;
  }

  int64_t rows, columns, stride;
  DType type;
  std::vector<std::byte> bytes;
};

/// Output memory, poisoned, with guards on every side.
struct Output {
  static constexpr int64_t kGuard = 64;
  Output(int64_t rows, int64_t columns, DType type = DType::f32)
      : rows(rows), columns(columns), stride(columns + 5), type(type) {
    cells.assign((2 * kGuard + rows * stride) * size_of(type) / 2, kPoison);
  }
  Matrix matrix() { return {cells.data() + kGuard * size_of(type) / 2, type, stride}; }
  double get(int64_t r, int64_t c) const {
    return element(cells.data(), type, kGuard + r * stride + c);
  }
  /// Whether every cell outside [rows, columns] still holds poison.
  bool only(Range written_rows, Range written_columns) const {
    const int64_t halves = size_of(type) / 2;
    for (int64_t i = 0; i < static_cast<int64_t>(cells.size()); ++i) {
      const int64_t at = i / halves - kGuard;
      const int64_t r = at / stride;
      const int64_t c = at % stride;
      const bool inside = at >= 0 && r >= written_rows.begin && r < written_rows.end &&
                          c >= written_columns.begin && c < written_columns.end;
      if (!inside && cells[i] != kPoison) {
        return false;
      }
    }
    return true;
  }

  static constexpr uint16_t kPoison = 0x7fa5;  // NaN as bf16, and as f32 in pairs
  int64_t rows, columns, stride;
  DType type;
  std::vector<uint16_t> cells;
};

struct Scratch {
  explicit Scratch(size_t bytes) : lines(bytes / 64 + 2) {}
  std::span<std::byte> span() {
    return {reinterpret_cast<std::byte*>(lines.data()), (lines.size() - 1) * sizeof(Line)};
  }
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> lines;
};

/// Rounding errors of a sum of k products behave like a random walk of steps of 2^-24 of the
/// magnitudes summed so far: below lambda sqrt(k) 2^-24 sum|a w| with lambda = 4 but for a chance
/// of 1e-3 per worst case (Higham & Mary, 2019, SIAM J. Sci. Comput. 41), which real sums stay far
/// from. Bias, alpha and the residual add a rounding each. f16 and bf16 factors are exact in f32.
double sum_tolerance(int64_t k, double magnitude) {
  return 0x1p-24 * (4 * std::sqrt(static_cast<double>(k)) + 4) * magnitude + 0x1p-126;
}

struct Case {
  int64_t rows, n, k;
  DType a, w;
  bool bias = false;
  float alpha = 1;
  bool accumulate = false;
};

std::string describe(const Case& c, cpu::Isa isa) {
  return std::string(name_of(isa)) + " rows " + std::to_string(c.rows) + " n " +
         std::to_string(c.n) + " k " + std::to_string(c.k) + " a " + std::string(name_of(c.a)) +
         " w " + std::string(name_of(c.w));
}

std::vector<cpu::Isa> available() {
  std::vector<cpu::Isa> result;
  for (int i = 0; i <= static_cast<int>(cpu::detected_isa()); ++i) {
    result.push_back(static_cast<cpu::Isa>(i));
  }
  return result;
}

class Products : public testing::Test {
 protected:
  void TearDown() override { cpu::force_isa(std::nullopt); }
  std::mt19937 random_{20240611};
};

constexpr std::pair<DType, DType> kFormats[] = {{DType::f32, DType::f32},
                                                {DType::f32, DType::bf16},
                                                {DType::f32, DType::f16},
                                                {DType::bf16, DType::bf16}};
/// Below, on and above every tile: lanes, panels, unit blocks, pairs.
constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {3, 7},    {16, 64}, {33, 95},
                                                   {64, 65}, {130, 31}, {65, 513}};

class LinearCheck {
 public:
  LinearCheck(const Case& c, std::mt19937& random)
      : case_(c),
        a_(c.rows, c.k, c.a, 1, random),
        w_(c.n, c.k, c.w, 0.1F, random),
        bias_(1, c.n, c.w, 1, random),
        residual_(c.rows, c.n, DType::f32, 1, random),
        expected_(c.rows * c.n),
        magnitude_(c.rows * c.n) {
    args_ = {.a = a_.matrix(),
             .w = w_.matrix(),
             .bias = c.bias ? bias_.vector() : ConstVector{},
             .n = c.n,
             .k = c.k,
             .alpha = c.alpha,
             .accumulate = c.accumulate,
             .out = {}};
    reference::linear(args_, {0, c.rows}, {0, c.n}, expected_.data());
    const Values a = a_.magnitudes();
    const Values w = w_.magnitudes();
    const Values bias = bias_.magnitudes();
    LinearArgs absolute = args_;
    absolute.a = a.matrix();
    absolute.w = w.matrix();
    absolute.bias = c.bias ? bias.vector() : ConstVector{};
    absolute.alpha = std::fabs(c.alpha);
    reference::linear(absolute, {0, c.rows}, {0, c.n}, magnitude_.data());
  }

  /// Runs the kernel on part of the output and returns all of it.
  Output run(Range rows, Range columns) {
    Output out(case_.rows, case_.n);
    args_.out = out.matrix();
    if (case_.accumulate) {
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t c = columns.begin; c < columns.end; ++c) {
          row<float>(args_.out, r)[c] = static_cast<float>(residual_.get(r, c));
        }
      }
    }
    Scratch scratch(cpu::linear_scratch_bytes(args_, rows.size()));
    cpu::linear(args_, rows, columns, scratch.span());
    EXPECT_TRUE(out.only(rows, columns));
    return out;
  }

  void expect_right(const Output& out, Range rows, Range columns) const {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      for (int64_t c = columns.begin; c < columns.end; ++c) {
        const double before = case_.accumulate ? residual_.get(r, c) : 0;
        const double expected = expected_[r * case_.n + c] + before;
        const double magnitude = magnitude_[r * case_.n + c] + std::fabs(before);
        ASSERT_LE(std::fabs(out.get(r, c) - expected), sum_tolerance(case_.k, magnitude))
            << "row " << r << " column " << c << " expected " << expected;
      }
    }
  }

  Values& a() { return a_; }
  Values& w() { return w_; }

 private:
  Case case_;
  Values a_, w_, bias_, residual_;
  std::vector<double> expected_;
  std::vector<double> magnitude_;
  LinearArgs args_;
};

TEST_F(Products, LinearMatchesTheDefinition) {
  for (const auto& [a, w] : kFormats) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 64}) {
        const bool odd = rows % 2 != 0;
        const Case c{rows, n, k, a, w, odd, odd ? 0.5F : 1.0F, rows % 3 == 0};
        LinearCheck check(c, random_);
        for (const cpu::Isa isa : available()) {
          SCOPED_TRACE(describe(c, isa));
          cpu::force_isa(isa);
          check.expect_right(check.run({0, rows}, {0, n}), {0, rows}, {0, n});
        }
      }
    }
  }
}

/// Several row blocks and several parts of k, at the full number of rows.
TEST_F(Products, LinearWithLongRows) {
  for (const auto& [a, w] : kFormats) {
    for (const Case& c : {Case{512, 70, 300, a, w}, Case{140, 20, 8200, a, w},
                          Case{140, 20, 8224, a, w}, Case{3, 20, 8200, a, w}}) {
      LinearCheck check(c, random_);
      for (const cpu::Isa isa : available()) {
        if (isa == cpu::Isa::scalar && c.rows > 3) {
          continue;  // minutes; the shapes above cover its code
        }
        SCOPED_TRACE(describe(c, isa));
        cpu::force_isa(isa);
        check.expect_right(check.run({0, c.rows}, {0, c.n}), {0, c.rows}, {0, c.n});
      }
    }
  }
}

/// Any split gives the same bits, and writes nothing outside its part.
TEST_F(Products, LinearIsIndependentOfRanges) {
  for (const auto& [a, w] : kFormats) {
    for (const int64_t k : {2100, 2112}) {
      const Case c{40, 150, k, a, w, true, 1, true};
      LinearCheck check(c, random_);
      for (const cpu::Isa isa : available()) {
        SCOPED_TRACE(describe(c, isa));
        cpu::force_isa(isa);
        const Output whole = check.run({0, 40}, {0, 150});
        const Output first = check.run({0, 8}, {0, 150});
        for (const Range rows : {Range{0, 13}, Range{13, 40}, Range{31, 40}}) {
          for (const Range columns : {Range{0, 1}, Range{5, 71}, Range{71, 150}, Range{149, 150}}) {
            const Output part = check.run(rows, columns);
            for (int64_t r = rows.begin; r < rows.end; ++r) {
              for (int64_t col = columns.begin; col < columns.end; ++col) {
                ASSERT_EQ(part.get(r, col), whole.get(r, col)) << r << ", " << col;
              }
            }
          }
        }
        for (const Range rows : {Range{0, 1}, Range{3, 5}, Range{1, 8}}) {
          for (const Range columns : {Range{0, 2}, Range{3, 71}, Range{149, 150}}) {
            const Output part = check.run(rows, columns);
            for (int64_t r = rows.begin; r < rows.end; ++r) {
              for (int64_t col = columns.begin; col < columns.end; ++col) {
                ASSERT_EQ(part.get(r, col), first.get(r, col)) << r << ", " << col;
              }
            }
          }
        }
      }
    }
  }
}

/// A NaN or infinity in `a` or `w` reaches its row or column of the output, and no other.
TEST_F(Products, LinearPropagatesNanAndInfinity) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& [a, w] : kFormats) {
    for (const int64_t rows : {2, 12}) {
      const Case c{rows, 40, 99, a, w};
      LinearCheck check(c, random_);
      check.a().set(0 * check.a().stride + 98, kNan);
      check.w().set(7 * check.w().stride + 3, kInfinity);
      check.w().set(39 * check.w().stride + 98, kNan);
      for (const cpu::Isa isa : available()) {
        SCOPED_TRACE(describe(c, isa));
        cpu::force_isa(isa);
        const Output out = check.run({0, rows}, {0, 40});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t col = 0; col < 40; ++col) {
            if (r == 0 || col == 39) {
              EXPECT_TRUE(std::isnan(out.get(r, col))) << r << ", " << col;
            } else if (col == 7) {
              EXPECT_TRUE(std::isinf(out.get(r, col))) << r << ", " << col;
            } else {
              EXPECT_TRUE(std::isfinite(out.get(r, col))) << r << ", " << col;
            }
          }
        }
      }
    }
  }
}

struct GatedCase {
  int64_t rows, n, k;
  DType a, w, out;
  bool bias = false;
};

class GatedCheck {
 public:
  GatedCheck(const GatedCase& c, std::mt19937& random)
      : case_(c),
        a_(c.rows, c.k, c.a, 1, random),
        gate_(c.n, c.k, c.w, 2 / std::sqrt(static_cast<float>(c.k)), random),
        up_(c.n, c.k, c.w, 2 / std::sqrt(static_cast<float>(c.k)), random),
        gate_bias_(1, c.n, c.w, 1, random),
        up_bias_(1, c.n, c.w, 1, random) {
    args_ = {.a = a_.matrix(),
             .gate = gate_.matrix(),
             .up = up_.matrix(),
             .gate_bias = c.bias ? gate_bias_.vector() : ConstVector{},
             .up_bias = c.bias ? up_bias_.vector() : ConstVector{},
             .n = c.n,
             .k = c.k,
             .out = {}};
  }

  Output run(Range rows, Range columns) {
    Output out(case_.rows, case_.n, case_.out);
    args_.out = out.matrix();
    Scratch scratch(cpu::gated_linear_scratch_bytes(args_, rows.size()));
    cpu::gated_linear(args_, rows, columns, scratch.span());
    EXPECT_TRUE(out.only(rows, columns));
    return out;
  }

  /// silu(g) u changes by at most 1.1 |u| dg + |silu(g)| du, and its own arithmetic (exp within 2
  /// ulp, an addition, a division, two products) adds less than 8 roundings, the result's format
  /// one.
  void expect_right(const Output& out) const {
    const auto project = [&](const Values& a, const Values& w, const Values& bias) {
      std::vector<double> result(case_.rows * case_.n);
      const LinearArgs args{.a = a.matrix(),
                            .w = w.matrix(),
                            .bias = case_.bias ? bias.vector() : ConstVector{},
                            .n = case_.n,
                            .k = case_.k,
                            .out = {}};
      reference::linear(args, {0, case_.rows}, {0, case_.n}, result.data());
      return result;
    };
    std::vector<double> expected(case_.rows * case_.n);
    reference::gated_linear(args_, {0, case_.rows}, {0, case_.n}, expected.data());
    const std::vector<double> g = project(a_, gate_, gate_bias_);
    const std::vector<double> u = project(a_, up_, up_bias_);
    const Values a = a_.magnitudes();
    const std::vector<double> g_magnitude = project(a, gate_.magnitudes(), gate_bias_.magnitudes());
    const std::vector<double> u_magnitude = project(a, up_.magnitudes(), up_bias_.magnitudes());
    for (int64_t r = 0; r < case_.rows; ++r) {
      for (int64_t c = 0; c < case_.n; ++c) {
        const int64_t i = r * case_.n + c;
        const double silu = g[i] / (1 + std::exp(-g[i]));
        const double rounding = 8 * 0x1p-24 + (case_.out == DType::bf16 ? 0x1p-8 : 0);
        const double tolerance = (1.1 * std::fabs(u[i]) * sum_tolerance(case_.k, g_magnitude[i]) +
                                  std::fabs(silu) * sum_tolerance(case_.k, u_magnitude[i])) *
                                     (1 + rounding) +
                                 rounding * std::fabs(expected[i]) + 0x1p-126;
        ASSERT_LE(std::fabs(out.get(r, c) - expected[i]), tolerance)
            << "row " << r << " column " << c << " expected " << expected[i];
      }
    }
  }

  Values& a() { return a_; }
  Values& gate() { return gate_; }

 private:
  GatedCase case_;
  Values a_, gate_, up_, gate_bias_, up_bias_;
  GatedLinearArgs args_;
};

TEST_F(Products, GatedLinearMatchesTheDefinition) {
  for (const auto& [a, w] : kFormats) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t rows : {1, 2, 5, 7, 8, 9, 13, 64}) {
        const GatedCase c{rows,         n, k, a, w, rows % 2 == 0 ? DType::f32 : DType::bf16,
                          rows % 3 == 0};
        GatedCheck check(c, random_);
        for (const cpu::Isa isa : available()) {
          SCOPED_TRACE(describe({rows, n, k, a, w}, isa));
          cpu::force_isa(isa);
          check.expect_right(check.run({0, rows}, {0, n}));
        }
      }
    }
  }
}

TEST_F(Products, GatedLinearIsIndependentOfRanges) {
  for (const auto& [a, w] : kFormats) {
    GatedCheck check({40, 150, a == DType::bf16 ? 2112 : 2100, a, w, DType::bf16, true}, random_);
    for (const cpu::Isa isa : available()) {
      SCOPED_TRACE(name_of(isa));
      cpu::force_isa(isa);
      for (const int64_t most : {40, 8}) {
        const Output whole = check.run({0, most}, {0, 150});
        for (const Range rows : {Range{0, most == 8 ? 5 : 13}, Range{most == 8 ? 2 : 13, most}}) {
          for (const Range columns : {Range{0, 1}, Range{5, 71}, Range{71, 150}}) {
            const Output part = check.run(rows, columns);
            for (int64_t r = rows.begin; r < rows.end; ++r) {
              for (int64_t col = columns.begin; col < columns.end; ++col) {
                ASSERT_EQ(part.get(r, col), whole.get(r, col)) << r << ", " << col;
              }
            }
          }
        }
      }
    }
  }
}

/// Very large and very small gates, NaN.
TEST_F(Products, GatedLinearAtTheEnds) {
  for (const int64_t rows : {1, 12}) {
    GatedCheck check({rows, 9, 8, DType::f32, DType::f32, DType::f32}, random_);
    for (int64_t i = 0; i < 9; ++i) {
      for (int64_t j = 0; j < 8; ++j) {
        check.gate().set(i * check.gate().stride + j, 0);
      }
    }
    check.a().set(0, 1);
    const float gates[9] = {-200, -100, -88, -20, 0, 20, 88, 100, 1e30F};
    for (int64_t i = 0; i < 9; ++i) {
      check.gate().set(i * check.gate().stride, gates[i]);
    }
    for (const cpu::Isa isa : available()) {
      SCOPED_TRACE(name_of(isa));
      cpu::force_isa(isa);
      check.expect_right(check.run({0, rows}, {0, 9}));
    }
    check.a().set(1, std::numeric_limits<float>::quiet_NaN());
    for (const cpu::Isa isa : available()) {
      cpu::force_isa(isa);
      const Output out = check.run({0, rows}, {0, 9});
      for (int64_t c = 0; c < 9; ++c) {
        EXPECT_TRUE(std::isnan(out.get(0, c)));
      }
    }
  }
}

}  // namespace
}  // namespace weft
