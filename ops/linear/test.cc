#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/linear/op.h"
#include "ops/linear/test_operands.h"

namespace weft {
namespace {

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

using Linear = Products;

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
    expect_new_weights();
  }

  /// After a change of w().
  void expect_new_weights() {
    const Case& c = case_;
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

  /// Whether the kernel reads the weights packed from now on.
  void pack(bool packed) {
    packed_ = packed ? std::make_unique<PackedValues>(std::vector<const Values*>{&w_}) : nullptr;
    args_.packed = packed ? packed_->get() : nullptr;
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
  size_t listed() const { return packed_->get()->list({0, cpu::packed_groups(case_.n)}).size(); }

 private:
  Case case_;
  Values a_, w_, bias_, residual_;
  std::vector<double> expected_;
  std::vector<double> magnitude_;
  std::unique_ptr<PackedValues> packed_;
  LinearArgs args_;
};

TEST_F(Linear, MatchesTheDefinition) {
  for (const auto& [a, w] : kFormats) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 64}) {
        const bool odd = rows % 2 != 0;
        const Case c{rows, n, k, a, w, odd, odd ? 0.5F : 1.0F, rows % 3 == 0};
        LinearCheck check(c, random_);
        for (const cpu::Isa isa : available()) {
          SCOPED_TRACE(describe(c, isa));
          cpu::force_isa(isa);
          for (const bool packed : forms(w)) {
            check.pack(packed);
            check.expect_right(check.run({0, rows}, {0, n}), {0, rows}, {0, n});
          }
        }
      }
    }
  }
}

/// Several row blocks and several parts of k, at the full number of rows.
TEST_F(Linear, WithLongRowsSlow) {
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
        for (const bool packed : forms(w)) {
          check.pack(packed);
          check.expect_right(check.run({0, c.rows}, {0, c.n}), {0, c.rows}, {0, c.n});
        }
      }
    }
  }
}

/// Parts of rows and columns, all of `most` rows or fewer, have the bits of the whole.
void expect_parts(LinearCheck& check, int64_t most, std::initializer_list<Range> parts_of_rows,
                  std::initializer_list<Range> parts_of_columns) {
  const Output whole = check.run({0, most}, {0, 150});
  for (const Range rows : parts_of_rows) {
    for (const Range columns : parts_of_columns) {
      const Output part = check.run(rows, columns);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t col = columns.begin; col < columns.end; ++col) {
          ASSERT_EQ(part.get(r, col), whole.get(r, col)) << r << ", " << col;
        }
      }
    }
  }
}

/// Any split gives the same bits, and writes nothing outside its part.
TEST_F(Linear, IsIndependentOfRanges) {
  for (const auto& [a, w] : kFormats) {
    for (const int64_t k : {2100, 2112}) {
      const Case c{40, 150, k, a, w, true, 1, true};
      LinearCheck check(c, random_);
      for (const cpu::Isa isa : available()) {
        if (isa == cpu::Isa::scalar && k != 2100) {
          continue;  // slow, and has no vectors that a row may fill
        }
        SCOPED_TRACE(describe(c, isa));
        cpu::force_isa(isa);
        for (const bool packed : forms(w)) {
          check.pack(packed);
          expect_parts(check, 40, {{0, 13}, {13, 40}, {31, 40}},
                       {{0, 1}, {5, 71}, {71, 150}, {149, 150}});
          expect_parts(check, 8, {{0, 1}, {3, 5}, {1, 8}}, {{0, 2}, {3, 71}, {149, 150}});
        }
      }
    }
  }
}

/// A NaN or infinity in `a` or `w` reaches its row or column of the output, and no other.
TEST_F(Linear, PropagatesNanAndInfinity) {
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
        for (const bool packed : forms(w)) {
          check.pack(packed);
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
}

TEST(LinearScratch, ForManyRowsIsEnoughForFewer) {
  for (const int64_t k : {64, 2048, 8192, 14336, 200000}) {
    LinearArgs args;
    args.k = k;
    args.n = 64;
    size_t least = 0;
    for (int64_t rows = 1; rows <= 600; ++rows) {
      const size_t bytes = cpu::linear_scratch_bytes(args, rows);
      EXPECT_GE(bytes, least) << rows << " rows of " << k;
      least = bytes;
    }
  }
}

/// Rows whose upper bytes are spread too widely for a dictionary: many weights are listed.
TEST_F(Linear, AddsListedWeights) {
  for (const int64_t rows : {1, 2, 7, 40}) {
    const Case c{rows, 20, 200, DType::f32, DType::bf16, true};
    LinearCheck check(c, random_);
    for (int64_t i = 0; i < 20 * check.w().stride; ++i) {
      if (i % check.w().stride < 200) {
        check.w().set(i,
                      std::ldexp(i % 2 == 0 ? 1.3F : -1.7F, static_cast<int>(i * 37 % 120) - 100));
      }
    }
    check.expect_new_weights();
    for (const cpu::Isa isa : available()) {
      SCOPED_TRACE(describe(c, isa));
      cpu::force_isa(isa);
      check.pack(true);
      EXPECT_GT(check.listed(), 20 * 200 / 2);
      check.expect_right(check.run({0, rows}, {0, 20}), {0, rows}, {0, 20});
    }
  }
}

}  // namespace
}  // namespace weft
