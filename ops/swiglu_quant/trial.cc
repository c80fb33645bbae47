#include <cmath>

#include "ops/harness/quantising.h"
#include "ops/swiglu_quant/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  DType type;
  QuantisedCase y;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns, {.least = 8, .unit = 8});
    v.word("", type, kHalves);
    y.fields(v);
  }
  std::string_view conflict() const { return y.conflict(type); }
};

constexpr Case kCases[] = {
#include "ops/swiglu_quant/cases.inc"
};

/// Gate and up are halves of one matrix.
class SwigluQuantTrial : public QuantisingTrial<SwigluQuantArgs> {
 public:
  SwigluQuantTrial(const Case& c, Random& random)
      : QuantisingTrial(swiglu_quant_kernel),
        columns_(c.columns),
        both_(input("gate_up", c.rows, 2 * c.columns, c.type, random, 2, gap(c))) {
    add_result(c.y, c.rows, c.columns, gap(c));
  }

  /// The exponential is good to some units in the last place of its argument; quotient and product
  /// round once each.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<double> v(static_cast<size_t>(rows.size() * columns_));
    reference::swiglu_quant(args(Side::host), rows, v.data());
    std::vector<double> error(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      const double gate = both_.get(rows.begin + at / columns_, at % columns_);
      error[i] = (16 + 2 * std::min(std::fabs(gate), 100.0)) * 0x1p-24 * std::fabs(v[i]);
    }
    return expect_result(rows, std::move(v), std::move(error));
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::swiglu_quant(args(Side::host), share(rows(), piece));
  }

  Work work() const override {
    return {.bytes = static_cast<double>(both_.bytes()) + result_bytes(),
            .flops = 5.0 * static_cast<double>(both_.rows() * columns_)};
  }

 protected:
  SwigluQuantArgs args(Side side) const override {
    const ConstMatrix gate = both_.in(side);
    ConstMatrix up = gate;
    up.data = static_cast<const std::byte*>(gate.data) +
              static_cast<size_t>(columns_) * size_of(gate.dtype);
    return {.rows = both_.rows(),
            .columns = columns_,
            .gate = gate,
            .up = up,
            .y = result(side),
            .workspace = {}};
  }

 private:
  static int64_t gap(const Case& c) { return c.use == Use::check ? 16 : 0; }

  int64_t columns_;
  Tensor& both_;
};

}  // namespace

Operation swiglu_quant() { return operation_of<SwigluQuantTrial, Case>("swiglu_quant", kCases); }

}  // namespace weft::trial
