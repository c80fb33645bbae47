#include <cmath>

#include "ops/activation_reference.h"
#include "ops/gated_linear/op.h"
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
  DType out;
  Activation activation = Activation::silu;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("n", n);
    v.size("k", k);
    v.word("a", a, kFileFloats);
    v.word("w", w, kFileFormats);
    v.word("out", out, kFileFloats);
    v.flag("bias", bias);
    v.optional_word("", activation, kActivations);
  }
  std::string_view conflict() const {
    return a == DType::bf16 && w != DType::bf16 ? "a in bf16 wants weights in bf16" : "";
  }
};

constexpr Case kCases[] = {
#include "ops/gated_linear/cases.inc"
};

class GatedLinearTrial : public PrefillTrial {
 public:
  GatedLinearTrial(const Case& c, Random& random)
      : a_(input("a", c.rows, c.k, c.a, random, 1, gap_after(c.k))),
        gate_(weights("gate", c, random)),
        up_(weights("up", c, random)),
        gate_bias_(input("gate_bias", 1, c.n, c.w, random)),
        up_bias_(input("up_bias", 1, c.n, c.w, random)),
        out_(output("out", c.rows, c.n, c.out, gap_after(c.n))) {
    args_ = {.a = a_.in(),
             .gate = gate_.in(),
             .up = up_.in(),
             .gate_bias = c.bias ? gate_bias_.vector() : ConstVector{},
             .up_bias = c.bias ? up_bias_.vector() : ConstVector{},
             .n = c.n,
             .k = c.k,
             .out = out_.out(),
             .activation = c.activation};
  }

  int64_t rows() const override { return a_.rows(); }

  /// g and u carry the error of a sum of k products; the activation turns g's into at most 1.13
  /// times as much (its steepest slope), and its own steps and the product round besides: GELU's
  /// exponent, which is at most 90 where the result is no zero, to 4 units of itself.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    reference::gated_linear(args_, rows, {0, args_.n}, out.value.data());
    const Sums g = sums(gate_, gate_bias_, args_.gate_bias, rows);
    const Sums u = sums(up_, up_bias_, args_.up_bias, rows);
    for (size_t i = 0; i < out.value.size(); ++i) {
      const double active = reference::activate(args_.activation, g.value[i]);
      const double exponent = args_.activation == Activation::gelu_tanh
                                  ? 4 * std::min(90.0, std::fabs(cubed(g.value[i])))
                                  : 0;
      out.tolerance[i] =
          reference::kSteepestActivation * g.error[i] * (std::fabs(u.value[i]) + u.error[i]) +
          std::fabs(active) * u.error[i] + (8 + exponent) * 0x1p-24 * std::fabs(out.value[i]);
    }
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::gated_linear(args_, {0, rows()}, share(args_.n, piece, 8), scratch(piece));
  }

  size_t scratch_bytes() const override { return cpu::gated_linear_scratch_bytes(args_, rows()); }

  Work work() const override {
    return {.bytes = static_cast<double>(a_.bytes() + gate_.bytes() + up_.bytes() + out_.bytes()),
            .flops = 2 * linear_flops(rows(), args_.n, args_.k),
            .peak = a_.dtype() == DType::bf16 ? Peak::bf16 : Peak::f32};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    return chunk_kernels(arch)->refuse_gated_linear(args_);
  }

  Status launch_rows(Arch arch, Stream stream) override {
    GatedLinearArgs args = args_;
    args.a = a_.in(Side::device);
    args.gate = gate_.in(Side::device);
    args.up = up_.in(Side::device);
    if (args.gate_bias.data != nullptr) {
      args.gate_bias = gate_bias_.vector(Side::device);
      args.up_bias = up_bias_.vector(Side::device);
    }
    args.out = out_.out(Side::device);
    const ChunkKernels& kernels = *chunk_kernels(arch);
    return (kernels.gated_linear_soon != nullptr ? kernels.gated_linear_soon
                                                 : kernels.gated_linear)(args, rows(), stream);
  }

 private:
  struct Sums {
    std::vector<double> value;
    std::vector<double> error;
  };

  /// GELU's exponent, 2 sqrt(2 / pi) (x + 0.044715 x^3).
  static double cubed(double x) { return 1.596 * (x + 0.044715 * x * x * x); }

  /// Weights whose sums are of size 1 or 2, where activations bend.
  Tensor& weights(std::string name, const Case& c, Random& random) {
    return input(std::move(name), c.n, c.k, c.w, random, 1.5f / std::sqrt(static_cast<float>(c.k)),
                 c.use == Use::check ? gap_after(c.k) : 0);
  }

  Sums sums(const Tensor& w, const Tensor& bias, const ConstVector& used_bias, Range rows) const {
    const Tensor a = a_.magnitudes();
    const Tensor w_magnitudes = w.magnitudes();
    const Tensor bias_magnitudes = bias.magnitudes();
    LinearArgs args;
    args.a = a_.in();
    args.w = w.in();
    args.bias = used_bias;
    args.n = args_.n;
    args.k = args_.k;
    Sums result;
    result.value.resize(static_cast<size_t>(rows.size() * args_.n));
    result.error = result.value;
    reference::linear(args, rows, {0, args_.n}, result.value.data());
    args.a = a.in();
    args.w = w_magnitudes.in();
    args.bias = used_bias.data != nullptr ? bias_magnitudes.vector() : ConstVector{};
    reference::linear(args, rows, {0, args_.n}, result.error.data());
    for (double& error : result.error) {
      error *= sum_tolerance(args_.k);
    }
    return result;
  }

  Tensor& a_;
  Tensor& gate_;
  Tensor& up_;
  Tensor& gate_bias_;
  Tensor& up_bias_;
  Tensor& out_;
  GatedLinearArgs args_;
};

}  // namespace

Operation gated_linear() { return operation_of<GatedLinearTrial, Case>("gated_linear", kCases); }

}  // namespace weft::trial
