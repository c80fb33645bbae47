#include <cmath>

#include "ops/harness/quantising.h"
#include "ops/rmsnorm_quant/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  DType type;
  bool residual;
  QuantisedCase y;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns, {.least = 8, .unit = 8});
    v.word("", type, kHalves);
    v.flag("residual", residual);
    y.fields(v);
  }
  std::string_view conflict() const { return y.conflict(type); }
};

constexpr Case kCases[] = {
#include "ops/rmsnorm_quant/cases.inc"
};

class RmsNormQuantTrial : public QuantisingTrial<RmsNormQuantArgs> {
 public:
  RmsNormQuantTrial(const Case& c, Random& random)
      : QuantisingTrial(rmsnorm_quant_kernel),
        x_(input("x", c.rows, c.columns, c.type, random, 2, gap(c))),
        weight_(input("weight", 1, c.columns, c.type, random)) {
    if (c.residual) {
      residual_ = &add("residual", Tensor::Role::inout, c.rows, c.columns, c.type, 2 * gap(c));
      residual_->fill(random, 3);
    }
    add_result(c.y, c.rows, c.columns, gap(c));
  }

  /// h is exact but for its rounding: a sum of two numbers of 16 bits, in f32. v as rmsnorm: the
  /// sum of squares has no cancellation, so its relative error is that of a sum, and half of it is
  /// left after the root; mean, root, reciprocal and products round once each.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<double> h(static_cast<size_t>(rows.size() * x_.columns()));
    std::vector<double> v(h.size());
    reference::rmsnorm_quant(args(Side::host), rows, h.data(), v.data());
    std::vector<double> error(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      error[i] = (sum_tolerance(x_.columns()) / 2 + 8 * 0x1p-24) * std::fabs(v[i]);
    }
    std::vector<Expectation> result = expect_result(rows, std::move(v), std::move(error));
    if (residual_ != nullptr) {
      Expectation& written = result.emplace_back(*residual_, rows);
      written.value = std::move(h);
      written.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::rmsnorm_quant(args(Side::host), share(rows(), piece));
  }

  Work work() const override {
    const double residual = residual_ != nullptr ? 2 * static_cast<double>(residual_->bytes()) : 0;
    return {.bytes = static_cast<double>(x_.bytes() + weight_.bytes()) + residual + result_bytes(),
            .flops = 5.0 * static_cast<double>(x_.rows() * x_.columns())};
  }

 protected:
  RmsNormQuantArgs args(Side side) const override {
    return {.rows = x_.rows(),
            .columns = x_.columns(),
            .x = x_.in(side),
            .residual = residual_ != nullptr ? residual_->out(side) : Matrix{},
            .weight = weight_.vector(side),
            .epsilon = 1e-5f,
            .y = result(side),
            .workspace = {}};
  }

 private:
  static int64_t gap(const Case& c) { return c.use == Use::check ? 16 : 0; }

  Tensor& x_;
  Tensor& weight_;
  Tensor* residual_ = nullptr;
};

}  // namespace

Operation rmsnorm_quant() { return operation_of<RmsNormQuantTrial, Case>("rmsnorm_quant", kCases); }

}  // namespace weft::trial
