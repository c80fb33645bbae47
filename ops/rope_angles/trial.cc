#include <cmath>

#include "ops/harness/prefill_trial.h"
#include "ops/rope_angles/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t half;
  int32_t first;
  float scale = 1;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("half", half);
    v.size("first", first, {.least = 0});
    v.real("scale", scale, {.least = 0, .most = 1e3, .required = false});
  }
};

constexpr Case kCases[] = {
#include "ops/rope_angles/cases.inc"
};

class RopeAnglesTrial : public PrefillTrial {
 public:
  RopeAnglesTrial(const Case& c, Random& random)
      : frequencies_(add("inverse_frequencies", Tensor::Role::input, 1, c.half, DType::f32)),
        cosines_(output("cosines", c.rows, c.half, DType::f32)),
        sines_(output("sines", c.rows, c.half, DType::f32)) {
    for (int64_t i = 0; i < c.half; ++i) {  // 500000^-(i / half), and a little off
      const double exact = std::pow(5e5, -static_cast<double>(i) / static_cast<double>(c.half));
      frequencies_.set(0, i, static_cast<float>(exact * (1 + 1e-3 * random.normal())));
    }
    for (int64_t r = 0; r < c.rows; ++r) {
      positions_.push_back(c.first + static_cast<int32_t>(r));
    }
    args_ = {.positions = positions_.data(),
             .inverse_frequencies = static_cast<const float*>(frequencies_.data()),
             .half = c.half,
             .cosines = static_cast<float*>(cosines_.data()),
             .sines = static_cast<float*>(sines_.data()),
             .scale = c.scale};
  }

  int64_t rows() const override { return cosines_.rows(); }

  /// Exact to f32: half a unit in the last place for the rounding, as much again for the functions,
  /// and for the product with a scale.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(cosines_, rows), Expectation(sines_, rows)};
    reference::rope_angles(args_, rows, result[0].value.data(), result[1].value.data());
    for (Expectation& each : result) {
      for (size_t i = 0; i < each.value.size(); ++i) {
        each.tolerance[i] = (args_.scale == 1 ? 1 : 2) * 0x1p-24 * std::fabs(each.value[i]);
      }
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override { cpu::rope_angles(args_, share(rows(), piece)); }

  Work work() const override {
    const double values = static_cast<double>(rows() * args_.half);
    return {.bytes = values * 8, .flops = values * 40};  // two polynomials and their reductions
  }

 protected:
  std::string_view refuse(Arch /*arch*/) const override { return {}; }

  Status launch_rows(Arch arch, Stream stream) override {
    RopeAnglesArgs args = args_;
    args.inverse_frequencies = static_cast<const float*>(frequencies_.data(Side::device));
    args.cosines = static_cast<float*>(cosines_.data(Side::device));
    args.sines = static_cast<float*>(sines_.data(Side::device));
    return chunk_kernels(arch)->rope_angles(args, rows(), positions_.front(), stream, {});
  }

 private:
  Tensor& frequencies_;
  Tensor& cosines_;
  Tensor& sines_;
  std::vector<int32_t> positions_;
  RopeAnglesArgs args_;
};

}  // namespace

Operation rope_angles() { return operation_of<RopeAnglesTrial, Case>("rope_angles", kCases); }

}  // namespace weft::trial
