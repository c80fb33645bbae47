#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/harness/trial.h"
#include "ops/moe_layer/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t experts;
  int64_t chosen;
  bool shared;
  int64_t inner;
  int64_t hidden;
  bool given = false;  ///< what rows have drawn

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("experts", experts, {.most = kMostLayerExperts - 1});
    v.size("chosen", chosen);
    v.flag("shared", shared);
    v.size("inner", inner, {.least = 8, .unit = 8});
    v.size("hidden", hidden, {.least = 8, .unit = 8, .most = 16384});
    v.flag("given", given);
  }
  std::string_view conflict() const {
    return chosen > experts ? "more are chosen than there are experts" : "";
  }
};

constexpr Case kCases[] = {
#include "ops/moe_layer/cases.inc"
};

class MoeLayerTrial : public KernelTrial<MoeLayerArgs> {
 public:
  MoeLayerTrial(const Case& c, Random& random)
      : KernelTrial(moe_layer_kernel),
        case_(c),
        x_(add("x", Tensor::Role::input, c.rows, c.hidden, DType::f16, gap())),
        router_(add("router", Tensor::Role::input, c.experts, c.hidden, DType::f16, gap())),
        gate_(weights("gate", c.hidden, c.inner, random)),
        up_(weights("up", c.hidden, c.inner, random)),
        down_(weights("down", c.inner, c.hidden, random)),
        ids_(drawn("ids")),
        drawn_weights_(drawn("weights")),
        out_(output("out", c.rows, c.hidden, DType::f16, gap())),
        buffers_(moe_layer_buffer_bytes(args(Side::host), false) + kAligned) {
    // Sums of the router's products that f32 has exactly, in any order: the same are drawn
    // wherever it is, and those of half a million terms have 24 bits.
    const auto fill = [&](Tensor& tensor, float unit) {
      for (int64_t r = 0; r < tensor.rows(); ++r) {
        for (int64_t i = 0; i < tensor.columns(); ++i) {
          tensor.set(r, i, std::round(random.normal() * 8) * unit);
        }
      }
    };
    fill(x_, 0.125F);
    if (c.given) {
      draw(random);
    }
    fill(router_, std::exp2(-3 - std::ceil(std::log2(static_cast<float>(c.hidden)) / 2)));
  }

  int64_t rows() const override { return case_.rows; }

  /// Roundings between the steps may fall to either side, where sums differ in the last bits; all
  /// together they move a result as far as not to round would. Of that, which is alike for all of a
  /// token's results, the root of the mean square is taken, and eight times it: what a normal
  /// number passes less than once in 10^14 times.
  std::vector<Expectation> expect(Range rows) override {
    const MoeLayerArgs operands = args(Side::host);
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    std::vector<double> exact(out.value.size());
    reference::moe_layer(operands, rows, false, exact.data());
    reference::moe_layer(operands, rows, true, out.value.data());
    for (size_t first = 0; first < exact.size(); first += static_cast<size_t>(case_.hidden)) {
      double squares = 0;
      for (size_t i = first; i < first + static_cast<size_t>(case_.hidden); ++i) {
        const double difference = out.value[i] - exact[i];
        squares += std::isfinite(difference) ? difference * difference : 0;
      }
      const double tolerance = 8 * std::sqrt(squares / static_cast<double>(case_.hidden));
      for (size_t i = first; i < first + static_cast<size_t>(case_.hidden); ++i) {
        out.tolerance[i] = std::isinf(out.value[i]) ? kInfinity : tolerance;
      }
    }
    out.any_infinity = true;  // of what sign, a value near zero decides
    out.allow_rounding();
    return result;
  }

  int phases() const override { return cpu::kMoeLayerSteps; }
  void run(int phase, Piece piece) override {
    const MoeLayerArgs operands = args(Side::host);
    const auto address = reinterpret_cast<uintptr_t>(buffers_.data());
    const MoeLayerBuffers buffers(
        operands, buffers_.data() + (kAligned - address % kAligned) % kAligned, false);
    cpu::moe_layer(operands, buffers, phase, piece.index, piece.count, scratch(piece));
  }
  size_t scratch_bytes() const override { return cpu::moe_layer_scratch_bytes(args(Side::host)); }

  /// The weights of the experts that rows which draw at random have in the mean, once.
  Work work() const override {
    const auto rows = static_cast<double>(case_.rows);
    const auto experts = static_cast<double>(case_.experts);
    const double drawn =
        experts * (1 - std::pow(1 - static_cast<double>(case_.chosen) / experts, rows)) +
        (case_.shared ? 1 : 0);
    const MoeLayerArgs operands = args(Side::host);
    const double each = static_cast<double>(gate_.bytes() + up_.bytes() + down_.bytes()) /
                        static_cast<double>(operands.all());
    return {
        .bytes = drawn * each + static_cast<double>(x_.bytes() + router_.bytes() + out_.bytes()),
        .flops = moe_layer_flops(rows, static_cast<double>(operands.slots_of_row()),
                                 static_cast<double>(case_.hidden),
                                 static_cast<double>(case_.inner), experts),
        .peak = Peak::bf16};
  }

 protected:
  MoeLayerArgs args(Side side) const override {
    return {
        .rows = case_.rows,
        .hidden = case_.hidden,
        .inner = case_.inner,
        .experts = case_.experts,
        .chosen = case_.chosen,
        .shared = case_.shared,
        .x = x_.in(side),
        .router = router_.in(side),
        .gate = matrices(gate_, side),
        .up = matrices(up_, side),
        .down = matrices(down_, side),
        .ids = case_.given ? static_cast<const int32_t*>(ids_.in(side).data) : nullptr,
        .weights = case_.given ? static_cast<const float*>(drawn_weights_.in(side).data) : nullptr,
        .out = out_.out(side),
        .workspace = {}};
  }

 private:
  static constexpr uintptr_t kAligned = 256;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  int64_t all() const { return case_.experts + (case_.shared ? 1 : 0); }
  /// Strides are multiples of 16 bytes.
  int64_t gap() const { return case_.use == Use::bench ? 0 : 8; }

  Tensor& drawn(const char* name) {
    return add(name, Tensor::Role::index, case_.given ? case_.rows : 0,
               case_.chosen + (case_.shared ? 1 : 0), DType::f32);
  }
  /// Any experts with any weights, ascending, and the shared one.
  void draw(Random& random) {
    auto* ids = static_cast<int32_t*>(ids_.data());
    auto* weights = static_cast<float*>(drawn_weights_.data());
    for (int64_t r = 0; r < case_.rows; ++r) {
      int64_t wanted = case_.chosen;
      for (int64_t e = 0; e < case_.experts; ++e) {
        if (random.below(case_.experts - e) < wanted) {
          *ids++ = static_cast<int32_t>(e);
          *weights++ = random.normal();
          --wanted;
        }
      }
      if (case_.shared) {
        *ids++ = static_cast<int32_t>(case_.experts);
        *weights++ = 1;
      }
    }
  }

  /// Each expert's behind the other's; from a table, since there can be gigabytes.
  Tensor& weights(const char* name, int64_t in, int64_t columns, Random& random) {
    Tensor& made = add(name, Tensor::Role::input, all() * in, columns, DType::f16, gap());
    std::vector<f16> numbers(static_cast<size_t>(columns + (1 << 16)));
    const float deviation = 1.5F / std::sqrt(static_cast<float>(in));
    std::ranges::generate(numbers, [&] { return to_f16(random.normal() * deviation); });
    for (int64_t r = 0; r < made.rows(); ++r) {
      std::copy_n(numbers.begin() + random.below(1 << 16), columns, row<f16>(made.out(), r));
    }
    return made;
  }
  std::vector<ConstMatrix> matrices(const Tensor& of, Side side) const {
    std::vector<ConstMatrix> made(static_cast<size_t>(all()), of.in(side));
    const int64_t pitch = of.rows() / all() * of.in().stride;
    for (size_t e = 0; e < made.size(); ++e) {
      made[e].data = static_cast<const f16*>(made[e].data) + static_cast<int64_t>(e) * pitch;
    }
    return made;
  }

  Case case_;
  Tensor& x_;
  Tensor& router_;
  Tensor& gate_;
  Tensor& up_;
  Tensor& down_;
  Tensor& ids_;
  Tensor& drawn_weights_;
  Tensor& out_;
  std::vector<std::byte> buffers_;  ///< on the CPU
};

}  // namespace

Operation moe_layer() { return operation_of<MoeLayerTrial, Case>("moe_layer", kCases); }

}  // namespace weft::trial
