#include <algorithm>
#include <cmath>

#include "ops/attention_forward/op.h"
#include "ops/harness/trial.h"
#include "ops/sequence_attention_trial.h"

namespace weft::trial {
namespace {

constexpr SequenceCase kCases[] = {
#include "ops/attention_forward/cases.inc"
};

class AttentionForwardTrial : public KernelTrial<AttentionForwardArgs> {
 public:
  AttentionForwardTrial(const SequenceCase& c, Random& random)
      : KernelTrial(attention_forward_kernel),
        shape_(c.shape()),
        q_(input("q", shape_.rows(), shape_.query_columns(), DType::bf16, random, 1, 8)),
        k_(input("k", shape_.rows(), shape_.kv_columns(), DType::bf16, random, 1, 16)),
        v_(input("v", shape_.rows(), shape_.kv_columns(), DType::bf16, random, 1, 8)),
        out_(output("out", shape_.rows(), shape_.query_columns(), c.out, 8)),
        lse_(output("lse", c.sequences * c.query_heads, c.tokens, DType::f32)) {}

  int64_t rows() const override { return shape_.rows(); }

  /// As of attention (ops/attention/trial.cc): a score is off by the error of a sum of |q| |k|, and
  /// probabilities are rounded to bf16. What lse is off by: a score's error, the error of the sum,
  /// relatively, and a dozen roundings.
  std::vector<Expectation> expect(Range rows) override {
    const AttentionForwardArgs args = this->args(Side::host);
    const int64_t dim = shape_.head_dim;
    std::vector<Expectation> result{Expectation(out_, rows)};
    std::vector<double> lse(static_cast<size_t>(rows.size() * shape_.query_heads));
    std::vector<double> unused(lse.size());
    reference::attention_forward(args, rows, result[0].value.data(), lse.data());
    const Tensor magnitudes = v_.magnitudes();
    AttentionForwardArgs unsigned_args = args;
    unsigned_args.v = magnitudes.in();
    reference::attention_forward(unsigned_args, rows, result[0].tolerance.data(), unused.data());
    size_t i = 0;
    size_t j = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t sequence = r / shape_.tokens;
      const int64_t begin = sequence * shape_.tokens;
      const int64_t seen = shape_.keys_of(r - begin);
      result.emplace_back(lse_,
                          Range{sequence * shape_.query_heads, (sequence + 1) * shape_.query_heads},
                          Range{r - begin, r - begin + 1});
      Expectation& sums = result.back();
      for (int64_t h = 0; h < shape_.query_heads; ++h, ++j) {
        double longest = 0;
        for (int64_t key = begin; key < begin + seen; ++key) {
          longest = std::max(longest, length(k_, key, h / shape_.group() * dim));
        }
        const double score_error =
            shape_.scale * sum_tolerance(dim) * length(q_, r, h * dim) * longest;
        const double share =
            2 * score_error + 2 * sum_tolerance(seen) + 8 * 0x1p-24 + roundoff(DType::bf16);
        for (int64_t c = 0; c < dim; ++c, ++i) {
          result[0].tolerance[i] *= share;
        }
        const auto at = static_cast<size_t>(h);
        sums.value[at] = lse[j];
        sums.tolerance[at] =
            score_error + sum_tolerance(seen) +
            12 * 0x1p-24 * (1 + std::fabs(lse[j]) + std::log(static_cast<double>(seen)));
      }
    }
    for (Expectation& each : result) {
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::attention_forward(args(Side::host), share(shape_.sequences * shape_.query_heads, piece),
                           scratch(piece));
  }

  size_t scratch_bytes() const override {
    return cpu::attention_forward_scratch_bytes(args(Side::host));
  }

  Work work() const override {
    return {.bytes = static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + out_.bytes() +
                                         lse_.bytes()),
            .flops = 4 * shape_.pairs() * static_cast<double>(shape_.head_dim),
            .peak = Peak::bf16};
  }

  Plan plan(const DeviceInfo& device) const override {
    // A weight of zero times NaN is NaN.
    return v_.finite() ? KernelTrial::plan(device)
                       : Plan{.why =
                                  "values that are not finite reach rows of their tile that do "
                                  "not see them"};
  }

 protected:
  AttentionForwardArgs args(Side side) const override {
    return {.shape = shape_,
            .q = q_.in(side),
            .k = k_.in(side),
            .v = v_.in(side),
            .out = out_.out(side),
            .lse = static_cast<float*>(lse_.data(side))};
  }

 private:
  double length(const Tensor& x, int64_t r, int64_t first) const {
    double squares = 0;
    for (int64_t c = first; c < first + shape_.head_dim; ++c) {
      squares += x.get(r, c) * x.get(r, c);
    }
    return std::sqrt(squares);
  }

  SequenceShape shape_;
  Tensor& q_;
  Tensor& k_;
  Tensor& v_;
  Tensor& out_;
  Tensor& lse_;
};

}  // namespace

Operation attention_forward() {
  return operation_of<AttentionForwardTrial, SequenceCase>("attention_forward", kCases);
}

}  // namespace weft::trial
