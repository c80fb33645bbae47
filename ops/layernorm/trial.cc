#include <cmath>

#include "ops/harness/trial.h"
#include "ops/layernorm/op.h"

namespace weft::trial {
namespace {

enum class Out { f32, bf16, in_place };
constexpr Word<Out> kOuts[] = {{"f32", Out::f32}, {"bf16", Out::bf16}, {"in-place", Out::in_place}};

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  DType weight;
  Out out;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns);
    v.word("weight", weight, kFileFormats);
    v.word("out", out, kOuts);
  }
};

constexpr Case kCases[] = {
#include "ops/layernorm/cases.inc"
};

class LayerNormTrial : public KernelTrial<LayerNormArgs> {
 public:
  LayerNormTrial(const Case& c, Random& random)
      : KernelTrial(layernorm_kernel),
        x_(add("x", c.out == Out::in_place ? Tensor::Role::inout : Tensor::Role::input, c.rows,
               c.columns, DType::f32, gap_after(c.columns))),
        weight_(input("weight", 1, c.columns, c.weight, random)),
        bias_(input("bias", 1, c.columns, c.weight, random)) {
    x_.fill(random, 3);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t column = 0; column < c.columns; ++column) {
        x_.set(r, column, static_cast<float>(x_.get(r, column) + 1));  // a mean to take away
      }
    }
    out_ = c.out == Out::in_place
               ? &x_
               : &output("out", c.rows, c.columns, c.out == Out::bf16 ? DType::bf16 : DType::f32,
                         gap_after(c.columns));
    args_ = args(Side::host);
  }

  int64_t rows() const override { return x_.rows(); }

  /// The mean is off by the error of a sum of |x| / columns, which every difference is off by, too;
  /// the sum of their squares has no cancellation, and half of its relative error is left after the
  /// root; a dozen steps round once each.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(*out_, rows)};
    Expectation& out = result[0];
    reference::layernorm(args_, rows, out.value.data());
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      double size = 0;
      double mean = 0;
      for (int64_t c = 0; c < args_.columns; ++c) {
        size += std::fabs(x_.get(r, c)) / static_cast<double>(args_.columns);
        mean += x_.get(r, c) / static_cast<double>(args_.columns);
      }
      double variance = args_.epsilon;
      for (int64_t c = 0; c < args_.columns; ++c) {
        variance += std::pow(x_.get(r, c) - mean, 2) / static_cast<double>(args_.columns);
      }
      const double mean_error = sum_tolerance(args_.columns) * size / std::sqrt(variance);
      for (int64_t c = 0; c < args_.columns; ++c) {
        const auto i = static_cast<size_t>((r - rows.begin) * args_.columns + c);
        const double bias = bias_.get(0, c);
        out.tolerance[i] = std::fabs(weight_.get(0, c)) * mean_error +
                           (sum_tolerance(args_.columns) + mean_error + 12 * 0x1p-24) *
                               (std::fabs(out.value[i] - bias) + std::fabs(bias));
      }
    }
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override { cpu::layernorm(args_, share(rows(), piece)); }

  Work work() const override {
    const double values = static_cast<double>(rows() * args_.columns);
    return {.bytes = values * static_cast<double>(4 + size_of(out_->dtype())) +
                     static_cast<double>(weight_.bytes() + bias_.bytes()),
            .flops = values * 7};
  }

 protected:
  LayerNormArgs args(Side side) const override {
    return {.rows = x_.rows(),
            .x = x_.in(side),
            .weight = weight_.vector(side),
            .bias = bias_.vector(side),
            .columns = x_.columns(),
            .epsilon = 1e-5f,
            .out = out_->out(side)};
  }

 private:
  static int64_t gap_after(int64_t columns) { return 8 - columns % 8; }

  Tensor& x_;
  Tensor& weight_;
  Tensor& bias_;
  Tensor* out_ = nullptr;
  LayerNormArgs args_;
};

}  // namespace

Operation layernorm() { return operation_of<LayerNormTrial, Case>("layernorm", kCases); }

}  // namespace weft::trial
