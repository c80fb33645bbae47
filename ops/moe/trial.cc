#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/activation_reference.h"
#include "ops/harness/prefill_trial.h"
#include "ops/moe/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t experts;
  int64_t chosen;
  int64_t n;
  int64_t hidden;
  DType a;
  DType w;
  bool renormalise;
  bool sigmoid;
  bool biases = false;
  bool mxfp4 = false;  ///< of weights, whose biases are w
  float limit = 0;
  int64_t groups = 0;  ///< 0: none
  int64_t kept_groups = 0;
  bool correction = false;
  float scale = 1;
  DType out = DType::f32;  ///< to which the results are added

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("experts", experts);
    v.size("chosen", chosen);
    v.size("n", n);
    v.size("hidden", hidden);
    v.word("a", a, kFileFloats);
    v.word("w", w, kWeightFormats);
    v.flag("renormalise", renormalise);
    v.flag("sigmoid", sigmoid);
    v.flag("biases", biases);
    v.flag("mxfp4", mxfp4);
    v.real("limit", limit, {.least = 0, .most = 1e6, .required = false, .otherwise = 0});
    v.size("groups", groups, {.required = false});
    v.size("kept_groups", kept_groups, {.required = false});
    v.flag("correction", correction);
    v.real("scale", scale, {.least = 0, .most = 1e6, .required = false, .otherwise = 1});
    v.optional_word("out", out, kHalfOut);
  }
  std::string_view conflict() const {
    return chosen > experts ? "more are chosen than there are experts"
           : a == DType::bf16 && w != DType::bf16 && w != DType::e4m3fn
               ? "a in bf16 wants weights in bf16 or F8_E4M3"
           : is_fp8(w) && (biases || correction) ? "biases are not in eight bits"
           : mxfp4 && w != DType::bf16           ? "weights in mxfp4 are said to be bf16"
           : mxfp4 && (n % kMxBlock != 0 || hidden % kMxBlock != 0)
               ? "n and hidden of weights in mxfp4 are multiples of 32"
           : out == DType::bf16 && a != DType::bf16 ? "a result in bf16 wants a in bf16"
           : limit > 0 && !mxfp4                    ? "a limit wants weights in mxfp4"
           : (groups > 0) != (kept_groups > 0)      ? "groups and kept_groups go together"
           : groups > 0 && (experts % groups != 0 || kept_groups > groups ||
                            chosen > experts / groups * kept_groups)
               ? "experts are of equal groups, and those kept have enough to choose from"
               : "";
  }
};

constexpr Case kCases[] = {
#include "ops/moe/cases.inc"
};

constexpr int64_t kGap = 8;

/// A matrix [n, k] of each expert. Those in e4m3fn have scales of blocks, those of each expert one
/// behind the other. Those in MXFP4 lie as kernels take them (ExpertMatrices), each
/// in a row of `all`, whose format is of no meaning but that no bytes of its infinities, which a
/// spoilt trial has, are scales so large that sums overflow.
struct ExpertTensor {
  Tensor& all;
  int64_t n, k;
  bool mxfp4;
  Tensor* scales = nullptr;  ///< of e4m3fn

  MxMatrix mx(int64_t expert) const {
    const auto* const codes =
        static_cast<const uint8_t*>(all.data()) + expert * static_cast<int64_t>(pitch());
    return {codes, reinterpret_cast<const e8m0*>(codes + n * k / 2), k};
  }
  ConstMatrix matrix(int64_t expert) const {
    ConstMatrix m = all.in();
    m.data = static_cast<const std::byte*>(m.data) + expert * pitch();
    m.stride = mxfp4 ? k : m.stride;
    return m;
  }
  ExpertMatrices on(Side side) const {
    ConstMatrix first = all.in(side);
    first.stride = mxfp4 ? k : first.stride;
    ExpertMatrices matrices{first, pitch(), mxfp4 ? n * k / 2 : 0};
    if (scales != nullptr) {
      matrices.block_scales = static_cast<const float*>(scales->in(side).data);
      matrices.block_scales_pitch = scale_blocks(n) * scale_blocks(k) * 4;
    }
    return matrices;
  }
  WeightScales scales_of(int64_t expert) const {
    if (scales == nullptr) {
      return {};
    }
    const int64_t stride = scale_blocks(k);
    return {Scaling::block,
            static_cast<const float*>(scales->data()) + expert * scale_blocks(n) * stride, stride};
  }
  double get(int64_t expert, int64_t r, int64_t i) const {
    return mxfp4 ? double{mx(expert).at(r, i)}
                 : all.get(expert * n + r, i) * double{scales_of(expert).at(r, i)};
  }

 private:
  int64_t pitch() const {
    return static_cast<int64_t>(all.bytes()) / (mxfp4 ? all.rows() : all.rows() / n);
  }
};

/// Routing and both products, a phase each; all that they hand on is compared.
class MoeTrial : public PrefillTrial {
 public:
  MoeTrial(const Case& c, Random& random)
      : logits_(input("logits", c.rows, c.experts, DType::f32, random, 2, kGap)),
        a_(input("a", c.rows, c.hidden, c.a, random, 1, kGap)),
        gate_(weights("gate", c, c.n, c.hidden, random)),
        up_(weights("up", c, c.n, c.hidden, random)),
        down_(weights("down", c, c.hidden, c.n, random)),
        gate_bias_(biases("gate_bias", c, c.n, random)),
        up_bias_(biases("up_bias", c, c.n, random)),
        down_bias_(biases("down_bias", c, c.hidden, random)),
        correction_(c.correction ? &input("correction", 1, c.experts, c.w, random, 0.3F) : nullptr),
        weights_(output("weights", c.rows, c.chosen, DType::f32)),
        between_(output("between", c.rows * c.chosen, c.n, c.a, kGap)),
        out_(add("out", c.out == DType::f32 ? Tensor::Role::inout : Tensor::Role::output, c.rows,
                 c.hidden, c.out, kGap)),
        ids_(static_cast<size_t>(c.rows * c.chosen)) {
    if (c.out == DType::f32) {
      out_.fill(random, 1);
    }
    const Drawn drawn{ids_.data(), static_cast<float*>(weights_.data()), c.chosen, c.chosen};
    route_ = {.logits = logits_.in(),
              .experts = c.experts,
              .sigmoid = c.sigmoid,
              .renormalise = c.renormalise,
              .drawn = drawn,
              .correction = on(Side::host, correction_),
              .groups = std::max<int64_t>(1, c.groups),
              .kept_groups = std::max<int64_t>(1, c.kept_groups),
              .scale = c.scale};
    up_args_ = {.a = a_.in(), .drawn = drawn, .out = between_.out(), .limit = c.limit};
    down_args_ = {.a = between_.in(),
                  .drawn = drawn,
                  .alpha = 0.7F,
                  .accumulate = c.out == DType::f32,
                  .out = out_.out()};
    for (int64_t e = 0; e < c.experts; ++e) {
      GatedLinearArgs gated;
      gated.gate = gate_.matrix(e);
      gated.up = up_.matrix(e);
      gated.gate_scales = gate_.scales_of(e);
      gated.up_scales = up_.scales_of(e);
      gated.gate_bias = bias_of(gate_bias_, e);
      gated.up_bias = bias_of(up_bias_, e);
      gated.n = c.n;
      gated.k = c.hidden;
      up_args_.experts.push_back(gated);
      LinearArgs linear;
      linear.w = down_.matrix(e);
      linear.scales = down_.scales_of(e);
      linear.bias = bias_of(down_bias_, e);
      linear.n = c.hidden;
      linear.k = c.n;
      down_args_.experts.push_back(linear);
      if (c.mxfp4) {
        up_args_.gates.push_back(gate_.mx(e));
        up_args_.ups.push_back(up_.mx(e));
        down_args_.mx.push_back(down_.mx(e));
      }
    }
  }

  int64_t rows() const override { return a_.rows(); }

  std::vector<Expectation> expect(Range rows) override {
    const int64_t chosen = route_.drawn.chosen;
    const int64_t slots = rows.size() * chosen;
    std::vector<Expectation> result{Expectation(weights_, rows),
                                    Expectation(between_, {rows.begin * chosen, rows.end * chosen}),
                                    Expectation(out_, rows)};
    std::vector<int32_t> ids(static_cast<size_t>(slots));
    reference::route(route_, rows, ids.data(), result[0].value.data());
    expect_weights(rows, result[0]);
    for (int64_t i = 0; i < slots; ++i) {
      expect_between(rows.begin + i / chosen, ids[static_cast<size_t>(i)], i, result[1]);
    }
    result[1].allow_rounding();
    for (int64_t r = 0; r < rows.size(); ++r) {
      expect_out(rows.begin + r, r, ids, result[0], result[1], result[2]);
    }
    result[2].allow_rounding();
    return result;
  }

  int phases() const override { return 3; }

  void run(int phase, Piece piece) override {
    if (phase == 0) {
      cpu::route(route_, share(rows(), piece));
    } else if (phase == 1) {
      cpu::experts_up(up_args_, {0, rows()}, share(up_args_.experts.front().n, piece, 8),
                      scratch(piece));
    } else {
      cpu::experts_down(down_args_, {0, rows()}, share(down_args_.experts.front().n, piece, 8),
                        scratch(piece));
    }
  }

  size_t scratch_bytes() const override {
    return std::max(cpu::experts_up_scratch_bytes(up_args_, rows()),
                    cpu::experts_down_scratch_bytes(down_args_, rows()));
  }

  /// The weights of the experts that rows which draw at random have in the mean.
  Work work() const override {
    const auto experts = static_cast<double>(route_.experts);
    const auto chosen = static_cast<double>(route_.drawn.chosen);
    const double drawn = 1 - std::pow(1 - chosen / experts, static_cast<double>(rows()));
    const GatedLinearArgs& expert = up_args_.experts.front();
    return {.bytes = drawn * static_cast<double>(gate_.all.bytes() + up_.all.bytes() +
                                                 down_.all.bytes()) +
                     static_cast<double>(a_.bytes() + out_.bytes()),
            .flops = 3 * chosen * linear_flops(rows(), expert.n, expert.k),
            .peak = a_.dtype() == DType::bf16 ? Peak::bf16 : Peak::f32};
  }

 protected:
  /// An infinite scale may meet each product or their sum, of which a gate makes anything.
  bool may_have(const Tensor& input, float x) const override {
    for (const ExpertTensor* w : {&gate_, &up_, &down_}) {
      if ((&input == &w->all && is_fp8(input.dtype()) && std::isnan(x)) ||
          (&input == w->scales && std::isinf(x))) {
        return false;
      }
    }
    return true;
  }

  std::string_view refuse(Arch arch) const override {
    const ChunkKernels& kernels = *chunk_kernels(arch);
    for (const std::string_view why :
         {kernels.refuse_route(route_), kernels.refuse_experts_up(up_on(Side::host)),
          kernels.refuse_experts_down(down_on(Side::host))}) {
      if (!why.empty()) {
        return why;
      }
    }
    return {};
  }

  Status launch_rows(Arch arch, Stream stream) override {
    if (scratch_.data() == nullptr) {
      WEFT_ASSIGN(scratch_, device().allocate(static_cast<size_t>(
                                products_at() + slots() * 4 * down_args_.experts.front().n)));
    }
    RouteArgs route = route_;
    route.logits = logits_.in(Side::device);
    route.drawn.ids = reinterpret_cast<int32_t*>(scratch_.data());
    route.drawn.weights = static_cast<float*>(weights_.out(Side::device).data);
    route.correction = on(Side::device, correction_);
    const ChunkKernels& kernels = *chunk_kernels(arch);
    WEFT_TRY(kernels.route(route, rows(), stream));
    WEFT_TRY(kernels.experts_up(up_on(Side::device), rows(), stream));
    return kernels.experts_down(down_on(Side::device), rows(), stream);
  }

 private:
  int64_t slots() const { return rows() * route_.drawn.chosen; }
  /// In the scratch, bytes: ids, then the order, then products.
  int64_t products_at() const {
    return round_up((slots() + moe_order_elements(rows(), route_.drawn.chosen, route_.experts)) * 4,
                    16);
  }
  PrefillDraw draw_on(Side side) const {
    auto* const ids = reinterpret_cast<int32_t*>(scratch_.data());
    return {.ids = ids,
            .weights = static_cast<const float*>(weights_.in(side).data),
            .experts = route_.experts,
            .chosen = route_.drawn.chosen,
            .order = ids != nullptr ? ids + slots() : nullptr};
  }
  static ConstVector on(Side side, const Tensor* biases) {
    return biases != nullptr ? biases->vector(side) : ConstVector{};
  }
  PrefillExpertsUp up_on(Side side) const {
    const GatedLinearArgs& expert = up_args_.experts.front();
    return {.a = a_.in(side),
            .drawn = draw_on(side),
            .gate = gate_.on(side),
            .up = up_.on(side),
            .gate_bias = on(side, gate_bias_),
            .up_bias = on(side, up_bias_),
            .n = expert.n,
            .k = expert.k,
            .limit = up_args_.limit,
            .out = between_.out(side)};
  }
  PrefillExpertsDown down_on(Side side) const {
    const LinearArgs& expert = down_args_.experts.front();
    return {.a = between_.in(side),
            .drawn = draw_on(side),
            .sorted = true,
            .weight = down_.on(side),
            .bias = on(side, down_bias_),
            .n = expert.n,
            .k = expert.k,
            .alpha = down_args_.alpha,
            .accumulate = down_args_.accumulate,
            .out = out_.out(side),
            .products = reinterpret_cast<float*>(scratch_.data() + products_at())};
  }

  ExpertTensor weights(std::string name, const Case& c, int64_t n, int64_t k, Random& random) {
    const float deviation = 1.5F / std::sqrt(static_cast<float>(k));
    if (is_fp8(c.w)) {
      Tensor& codes = input(name, c.experts * n, k, c.w, random, 1);
      return {codes, n, k, false,
              &input(name + "_scales", c.experts * scale_blocks(n), scale_blocks(k), DType::f32,
                     random, deviation)};
    }
    if (!c.mxfp4) {
      return {input(std::move(name), c.experts * n, k, c.w, random, deviation), n, k, false};
    }
    constexpr int64_t kAligned = 16;
    const int64_t bytes = round_up(MxMatrix::bytes_of(n * k), kAligned);
    const ExpertTensor made{
        add(std::move(name), Tensor::Role::input, c.experts, bytes / 2, DType::bf16), n, k, true};
    constexpr float kOfCodes = 2.926F;  // deviation of codes that are uniform
    const auto power = static_cast<int64_t>(std::floor(std::log2(deviation / kOfCodes))) + 127;
    for (int64_t e = 0; e < c.experts; ++e) {
      auto* const to = const_cast<uint8_t*>(made.mx(e).codes);
      std::generate_n(to, bytes, [&] { return static_cast<uint8_t>(random.next()); });
      std::generate_n(to + n * k / 2, n * k / kMxBlock,
                      [&] { return static_cast<uint8_t>(power + random.below(3) - 1); });
    }
    return made;
  }
  Tensor* biases(std::string name, const Case& c, int64_t n, Random& random) {
    return c.biases ? &input(std::move(name), c.experts, n, c.w, random, 0.5F) : nullptr;
  }
  static ConstVector bias_of(const Tensor* all, int64_t expert) {
    if (all == nullptr) {
      return {};
    }
    return {static_cast<const std::byte*>(all->data()) +
                expert * all->columns() * static_cast<int64_t>(size_of(all->dtype())),
            all->dtype()};
  }

  /// An exponential errs by 2 units and what its argument does, the sums by a unit a term.
  void expect_weights(Range rows, Expectation& out) const {
    const int64_t chosen = route_.drawn.chosen;
    for (size_t i = 0; i < out.value.size(); ++i) {
      const int64_t r = rows.begin + static_cast<int64_t>(i) / chosen;
      double most = 0;  // an infinite logit's weight is 0 or none
      for (int64_t e = 0; e < route_.experts; ++e) {
        const double size = std::fabs(logits_.get(r, e));
        most = std::isfinite(size) ? std::max(most, size) : most;
      }
      out.tolerance[i] =
          out.value[i] * 0x1p-24 * (12 + 4 * most + 2 * static_cast<double>(route_.experts)) +
          0x1p-126;
    }
  }

  /// A sum of products and the sum of their magnitudes.
  struct Sum {
    double value = 0, magnitude = 0;
  };
  template <class Factor>
  static Sum sum(const ExpertTensor& w, const Tensor* biases, int64_t expert, int64_t row,
                 Factor factor) {
    Sum s;
    if (biases != nullptr) {
      s.value = biases->get(expert, row);
      s.magnitude = std::fabs(s.value);
    }
    for (int64_t i = 0; i < w.k; ++i) {
      const double term = w.get(expert, row, i) * factor(i);
      s.value += term;
      s.magnitude += std::fabs(term);
    }
    return s;
  }

  /// Of a sum, in its magnitude. Many rows of bf16 meet scaled weights in bf16.
  double sum_error(int64_t k) const {
    return sum_tolerance(k) + (gate_.scales != nullptr && a_.dtype() == DType::bf16 ? 0x1p-8 : 0);
  }

  /// As gated_linear's.
  void expect_between(int64_t r, int32_t expert, int64_t slot, Expectation& out) const {
    const auto [n, k] = std::pair(up_args_.experts.front().n, up_args_.experts.front().k);
    const auto a = [&](int64_t i) { return a_.get(r, i); };
    for (int64_t c = 0; c < n; ++c) {
      const Sum g = sum(gate_, gate_bias_, expert, c, a);
      Sum u = sum(up_, up_bias_, expert, c, a);
      double active = reference::activate(Activation::silu, g.value);
      double units = 8;
      double g_error = sum_error(k) * g.magnitude;
      double u_error = sum_error(k) * u.magnitude;
      if (const double limit = up_args_.limit; limit > 0) {
        const double clamped = std::min(g.value, limit);
        active = clamped / (1 + std::exp(-1.702 * clamped));
        g_error = g.value > limit && std::isinf(g.value) ? 0 : g_error;  // whatever it errs by
        u_error = std::isinf(u.value) ? 0 : sum_error(k) * (u.magnitude + 1);
        u.value = std::clamp(u.value, -limit, limit) + 1;
        units += 4 * std::fabs(clamped);  // the exponent is rounded
      }
      const auto i = static_cast<size_t>(slot * n + c);
      out.value[i] = active * u.value;
      out.tolerance[i] = reference::kSteepestActivation * g_error * (std::fabs(u.value) + u_error) +
                         std::fabs(active) * u_error + units * 0x1p-24 * std::fabs(out.value[i]);
    }
  }

  /// Each expert's output errs by its sum's error and by its inputs', the sum over them by one
  /// rounding a term.
  void expect_out(int64_t r, int64_t local, const std::vector<int32_t>& ids,
                  const Expectation& weights, const Expectation& between, Expectation& out) const {
    const int64_t chosen = route_.drawn.chosen;
    const int64_t n = down_.n;
    const int64_t k = down_.k;
    const double alpha = double{down_args_.alpha};
    for (int64_t c = 0; c < n; ++c) {
      const auto at = static_cast<size_t>(local * n + c);
      double value = down_args_.accumulate ? out_.get(r, c) : 0;
      double magnitude = std::fabs(value);
      double error = 0;
      for (int64_t slot = local * chosen; slot < (local + 1) * chosen; ++slot) {
        const auto s = static_cast<size_t>(slot);
        const auto h = [&](int64_t i) { return between.value[static_cast<size_t>(slot * k + i)]; };
        const auto h_error = [&](int64_t i) {
          return between.tolerance[static_cast<size_t>(slot * k + i)];
        };
        const Sum y = sum(down_, down_bias_, ids[s], c, h);
        const double y_error =
            sum_error(k) * y.magnitude + sum(down_, nullptr, ids[s], c, h_error).magnitude;
        value += alpha * weights.value[s] * y.value;
        magnitude += std::fabs(alpha * weights.value[s] * y.value);
        error += alpha * (weights.value[s] * y_error + weights.tolerance[s] * std::fabs(y.value));
      }
      out.value[at] = value;
      out.tolerance[at] = error + static_cast<double>(2 * chosen + 2) * 0x1p-24 * magnitude;
    }
  }

  Tensor& logits_;
  Tensor& a_;
  ExpertTensor gate_;
  ExpertTensor up_;
  ExpertTensor down_;
  Tensor* gate_bias_;
  Tensor* up_bias_;
  Tensor* down_bias_;
  Tensor* correction_;
  Tensor& weights_;
  Tensor& between_;
  Tensor& out_;
  std::vector<int32_t> ids_;
  DeviceMemory scratch_;  // of the device
  RouteArgs route_;
  ExpertsUpArgs up_args_;
  ExpertsDownArgs down_args_;
};

}  // namespace

Operation moe() { return operation_of<MoeTrial, Case>("moe", kCases); }

}  // namespace weft::trial
