#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"
#include "ops/linear/test_operands.h"

namespace weft {
namespace {

using GatedLinear = Products;

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

  /// Whether the kernel reads the weights packed from now on.
  void pack(bool packed) {
    packed_ =
        packed ? std::make_unique<PackedValues>(std::vector<const Values*>{&gate_, &up_}) : nullptr;
    args_.packed = packed ? packed_->get() : nullptr;
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
  std::unique_ptr<PackedValues> packed_;
  GatedLinearArgs args_;
};

TEST_F(GatedLinear, MatchesTheDefinition) {
  for (const auto& [a, w] : kFormats) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t rows : {1, 2, 5, 7, 8, 9, 13, 64}) {
        const GatedCase c{rows,         n, k, a, w, rows % 2 == 0 ? DType::f32 : DType::bf16,
                          rows % 3 == 0};
        GatedCheck check(c, random_);
        for (const cpu::Isa isa : available()) {
          if (isa == cpu::Isa::scalar && rows > 13) {
            continue;  // slow, and 13 rows run the same code
          }
          SCOPED_TRACE(testing::Message() << name_of(isa) << " rows " << rows << " n " << n << " k "
                                          << k << " a " << name_of(a) << " w " << name_of(w));
          cpu::force_isa(isa);
          for (const bool packed : forms(w)) {
            check.pack(packed);
            check.expect_right(check.run({0, rows}, {0, n}));
          }
        }
      }
    }
  }
}

TEST_F(GatedLinear, IsIndependentOfRanges) {
  for (const auto& [a, w] : kFormats) {
    GatedCheck check({40, 150, a == DType::bf16 ? 2112 : 2100, a, w, DType::bf16, true}, random_);
    for (const cpu::Isa isa : available()) {
      SCOPED_TRACE(name_of(isa));
      cpu::force_isa(isa);
      for (const auto& [most, packed] :
           {std::pair<int64_t, bool>{40, false}, {8, false}, {40, true}, {8, true}}) {
        if (packed && w != DType::bf16) {
          continue;
        }
        check.pack(packed);
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
TEST_F(GatedLinear, AtTheEnds) {
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
