#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/activation_reference.h"
#include "ops/harness/prefill_trial.h"
#include "ops/linear/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t n;
  int64_t k;
  DType a;
  DType w;
  bool bias;
  float alpha;
  bool accumulate;
  Activation activation = Activation::none;
  float soft_cap = 0;
  DType out = DType::f32;
  Scaling scaling = Scaling::none;  ///< of w

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("n", n);
    v.size("k", k);
    v.word("a", a, kFileFloats);
    v.word("w", w, kWeightFormats);
    v.flag("bias", bias);
    v.real("alpha", alpha, {.least = -1e6, .most = 1e6, .required = false});
    v.flag("accumulate", accumulate);
    v.optional_word("", activation, kActivations);
    v.real("soft-cap", soft_cap, {.least = 0, .most = 1e6, .required = false, .otherwise = 0});
    v.optional_word("out", out, kHalfOut);
    v.optional_word("scales", scaling, kScalings);
  }
  std::string_view conflict() const {
    return is_fp8(w) != (scaling != Scaling::none) ? "w in F8_E4M3 has scales, others have none"
           : a == DType::bf16 && w != DType::bf16 && !is_fp8(w)
               ? "a in bf16 wants weights in bf16 or F8_E4M3"
               : "";
  }
};

constexpr Case kCases[] = {
#include "ops/linear/cases.inc"
};

class LinearTrial : public PrefillTrial {
 public:
  LinearTrial(const Case& c, Random& random)
      : a_(input("a", c.rows, c.k, c.a, random, 1, gap_after(c.k))),
        w_(input("w", c.n, c.k, c.w, random, 1, c.use == Use::bench ? 0 : gap_after(c.k))),
        bias_(input("bias", 1, c.n, is_fp8(c.w) ? DType::f32 : c.w, random)),
        scales_(input("scales", scale_rows(c), scale_columns(c), DType::f32, random)),
        out_(add("out", c.accumulate ? Tensor::Role::inout : Tensor::Role::output, c.rows, c.n,
                 c.out, c.a == DType::bf16 || c.n % 8 == 0 ? gap_after(c.n) : 1)) {
    if (c.accumulate) {
      out_.fill(random, 1);
    }
    args_ = {.a = a_.in(),
             .w = w_.in(),
             .bias = c.bias ? bias_.vector() : ConstVector{},
             .n = c.n,
             .k = c.k,
             .alpha = c.alpha,
             .accumulate = c.accumulate,
             .activation = c.activation,
             .out = out_.out(),
             .soft_cap = c.soft_cap,
             .scales = scales_of(scales_, c.scaling)};
  }

  int64_t rows() const override { return a_.rows(); }

  /// The error of a sum of k products, in units of sum |a w|, which the reference computes from the
  /// operands' magnitudes. Products of bf16 and f16 are exact in f32. What bends the sum has a
  /// slope of 1.13 at most and takes a dozen roundings: with an exponent, which is at most 20 here,
  /// times as many.
  std::vector<Expectation> expect(Range rows) override {
    const Range columns{0, args_.n};
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    reference::linear(args_, rows, columns, out.value.data());
    const Tensor a = a_.magnitudes();
    const Tensor w = w_.magnitudes();
    const Tensor bias = bias_.magnitudes();
    const Tensor scales = scales_.magnitudes();
    LinearArgs unsigned_args = args_;
    unsigned_args.activation = Activation::none;
    unsigned_args.soft_cap = 0;
    unsigned_args.a = a.in();
    unsigned_args.w = w.in();
    unsigned_args.scales = scales_of(scales, args_.scales.scaling);
    unsigned_args.bias = args_.bias.data != nullptr ? bias.vector() : ConstVector{};
    reference::linear(unsigned_args, rows, columns, out.tolerance.data());
    for (size_t i = 0; i < out.value.size(); ++i) {
      out.tolerance[i] =
          std::fabs(out.tolerance[i]) * (sum_tolerance(args_.k) + weights_tolerance());
      if (args_.activation != Activation::none || args_.soft_cap > 0) {
        out.tolerance[i] = reference::kSteepestActivation * out.tolerance[i] +
                           12 * 20 * 0x1p-24 * std::fabs(out.value[i]);
      }
      if (args_.accumulate) {
        const auto at = static_cast<int64_t>(i);
        out.value[i] += out_.get(rows.begin + at / args_.n, at % args_.n);
      }
    }
    out.allow_rounding();
    if (is_fp8(args_.w.dtype)) {  // an infinite scale may meet each product or their sum
      out.any_infinity = true;
      for (size_t i = 0; i < out.tolerance.size(); ++i) {
        if (has_infinite_scale(static_cast<int64_t>(i) % args_.n)) {
          out.tolerance[i] = std::numeric_limits<double>::infinity();
        }
      }
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::linear(args_, {0, rows()}, share(args_.n, piece, 8), scratch(piece));
  }

  size_t scratch_bytes() const override { return cpu::linear_scratch_bytes(args_, rows()); }

  Work work() const override {
    return {.bytes = static_cast<double>(a_.bytes() + w_.bytes() + scales_.bytes() +
                                         out_.bytes() * (args_.accumulate ? 2 : 1)),
            .flops = linear_flops(rows(), args_.n, args_.k),
            .peak = a_.dtype() == DType::bf16 ? Peak::bf16 : Peak::f32};
  }

 protected:
  bool may_have(const Tensor& input, float x) const override {
    return !std::isnan(x) || &input != &w_ || !is_fp8(w_.dtype());
  }

  std::string_view refuse(Arch arch) const override {
    return is_fp8(w_.dtype())
               ? "weights in fp8 are multiplied as gemm_fp8_blockwise and gemm_skinny"
               : chunk_kernels(arch)->refuse_linear(args_);
  }

  Status launch_rows(Arch arch, Stream stream) override {
    LinearArgs args = args_;
    args.a = a_.in(Side::device);
    args.w = w_.in(Side::device);
    if (args.bias.data != nullptr) {
      args.bias = bias_.vector(Side::device);
    }
    args.out = out_.out(Side::device);
    if (workspace_.data() == nullptr) {
      WEFT_TRY(make_scratch(arch, args, stream));
    }
    return chunk_kernels(arch)->linear(
        args, rows(),
        {reinterpret_cast<float*>(product_.data()), {workspace_.data(), workspace_.size()}},
        stream);
  }

 private:
  Status make_scratch(Arch arch, const LinearArgs& args, Stream stream) {
    WEFT_ASSIGN(const size_t bytes, chunk_kernels(arch)->linear_workspace(args, stream));
    WEFT_ASSIGN(workspace_, device().allocate(std::max(bytes, kCounterBytes)));
    const std::vector<char> zeros(kCounterBytes);
    WEFT_TRY(device().upload(workspace_.data(), zeros.data(), zeros.size()));
    WEFT_ASSIGN(product_, device().allocate(static_cast<size_t>(rows() * args.n) * 4));
    return {};
  }
  bool has_infinite_scale(int64_t column) const {
    bool found = false;
    for (int64_t i = 0; i < args_.k; i += kScaleBlock) {
      found = found || std::isinf(args_.scales.at(column, i));
    }
    return found;
  }
  static int64_t scale_rows(const Case& c) {
    return c.scaling == Scaling::block ? scale_blocks(c.n) : c.scaling == Scaling::row ? c.n : 1;
  }
  static int64_t scale_columns(const Case& c) {
    return c.scaling == Scaling::block ? scale_blocks(c.k) : 1;
  }
  static WeightScales scales_of(const Tensor& scales, Scaling scaling) {
    const ConstMatrix m = scales.in();
    return {scaling, static_cast<const float*>(m.data), m.stride};
  }
  /// Many rows of bf16 meet scaled weights in bf16.
  double weights_tolerance() const {
    return is_fp8(w_.dtype()) && a_.dtype() == DType::bf16 ? 0x1p-8 : 0;
  }

  Tensor& a_;
  Tensor& w_;
  Tensor& bias_;
  Tensor& scales_;
  Tensor& out_;
  DeviceMemory workspace_, product_;
  LinearArgs args_;
};

}  // namespace

Operation linear() { return operation_of<LinearTrial, Case>("linear", kCases); }

}  // namespace weft::trial
