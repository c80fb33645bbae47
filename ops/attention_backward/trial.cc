#include <cmath>
#include <limits>

#include "ops/attention_backward/op.h"
#include "ops/harness/trial.h"
#include "ops/sequence_attention_trial.h"

namespace weft::trial {
namespace {

constexpr SequenceCase kCases[] = {
#include "ops/attention_backward/cases.inc"
};

/// The gradients are those of any `out` and `lse`, which need not be what attention_forward makes
/// of q, k and v: here they are random numbers of that size.
class AttentionBackwardTrial : public KernelTrial<AttentionBackwardArgs> {
 public:
  AttentionBackwardTrial(const SequenceCase& c, Random& random)
      : KernelTrial(attention_backward_kernel),
        shape_(c.shape()),
        q_(input("q", shape_.rows(), shape_.query_columns(), DType::bf16, random, 1, 8)),
        k_(input("k", shape_.rows(), shape_.kv_columns(), DType::bf16, random, 1, 16)),
        v_(input("v", shape_.rows(), shape_.kv_columns(), DType::bf16, random, 1, 8)),
        o_(input("out", shape_.rows(), shape_.query_columns(), DType::bf16, random, 0.3f, 8)),
        d_out_(input("d_out", shape_.rows(), shape_.query_columns(), DType::bf16, random, 1, 16)),
        lse_(input("lse", c.sequences * c.query_heads, c.tokens, DType::f32, random, 0.3f)),
        d_q_(output("d_q", shape_.rows(), shape_.query_columns(), c.out, 8)),
        d_k_(output("d_k", shape_.rows(), shape_.kv_columns(), c.out, 8)),
        d_v_(output("d_v", shape_.rows(), shape_.kv_columns(), c.out, 16)) {
    for (int64_t r = 0; r < lse_.rows(); ++r) {
      for (int64_t i = 0; i < c.tokens; ++i) {
        const double seen = static_cast<double>(shape_.keys_of(i));
        lse_.set(r, i, static_cast<float>(lse_.get(r, i) + std::log(seen) + 1.125));
      }
    }
  }

  int64_t rows() const override { return shape_.rows(); }

  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(d_q_, rows), Expectation(d_k_, rows),
                                    Expectation(d_v_, rows)};
    Expectation& q = result[0];
    Expectation& k = result[1];
    Expectation& v = result[2];
    reference::attention_backward(args(Side::host), rows,
                                  {q.value.data(), k.value.data(), v.value.data()});
    const int64_t dim = shape_.head_dim;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t first = r / shape_.tokens * shape_.tokens;
      for (int64_t h = 0; h < shape_.query_heads; ++h) {
        const int64_t kv_column = h / shape_.group() * dim;
        const auto place = [&](const Expectation& of, int64_t column) {
          return static_cast<size_t>((r - rows.begin) * of.tensor->columns() + column);
        };
        const int64_t seen = shape_.keys_of(r - first);
        for (int64_t key = first; key < first + seen; ++key) {
          const double off = Errors(*this, r, key, h).of_score(seen);
          for (int64_t i = 0; i < dim; ++i) {
            q.tolerance[place(q, h * dim + i)] +=
                shape_.scale * off * std::fabs(k_.get(key, kv_column + i));
          }
        }
        const int64_t from = shape_.causal ? r : first;
        const int64_t terms = (first + shape_.tokens - from) * shape_.group();
        for (int64_t query = from; query < first + shape_.tokens; ++query) {
          const Errors errors(*this, query, r, h);
          for (int64_t i = 0; i < dim; ++i) {
            k.tolerance[place(k, kv_column + i)] +=
                shape_.scale * errors.of_score(terms) * std::fabs(q_.get(query, h * dim + i));
            v.tolerance[place(v, kv_column + i)] +=
                errors.of_probability(terms) * std::fabs(d_out_.get(query, h * dim + i));
          }
        }
      }
    }
    for (Expectation& each : result) {
      each.any_infinity = true;
      for (size_t i = 0; i < each.value.size(); ++i) {
        if (!std::isfinite(each.value[i]) || !std::isfinite(each.tolerance[i])) {
          each.tolerance[i] = std::numeric_limits<double>::infinity();
        }
      }
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::attention_backward(args(Side::host), share(shape_.sequences * shape_.kv_heads, piece),
                            scratch(piece));
  }

  size_t scratch_bytes() const override {
    return cpu::attention_backward_scratch_bytes(args(Side::host));
  }

  /// Five products, as the algorithm has them where nothing is computed twice.
  Work work() const override {
    double bytes = 0;
    for (const auto& tensor : tensors()) {
      bytes += static_cast<double>(tensor->bytes());
    }
    return {.bytes = bytes,
            .flops = 10 * shape_.pairs() * static_cast<double>(shape_.head_dim),
            .peak = Peak::bf16};
  }

  Plan plan(const DeviceInfo& device) const override {
    for (const auto& tensor : tensors()) {
      if (tensor->role() == Tensor::Role::input && !tensor->finite()) {
        return {.why = "what is not finite reaches pairs of its tile that do not see it"};
      }
    }
    return KernelTrial::plan(device);
  }

 protected:
  AttentionBackwardArgs args(Side side) const override {
    return {.shape = shape_,
            .q = q_.in(side),
            .k = k_.in(side),
            .v = v_.in(side),
            .out = o_.in(side),
            .d_out = d_out_.in(side),
            .lse = static_cast<const float*>(lse_.data(side)),
            .d_q = d_q_.out(side),
            .d_k = d_k_.out(side),
            .d_v = d_v_.out(side)};
  }

 private:
  /// What a term of the gradients' sums may be off by. A score is off by the error of a sum of
  /// |q k|, the exponent by some roundings of its two terms besides; a probability by that,
  /// relatively, and by the exponential's 2 units; a score's gradient p (d_out.v - delta) by the
  /// errors of both sums times p, and relatively by p's. Both factors of the last products are
  /// rounded to bf16. And the sum of the `terms` has an error of its own.
  struct Errors {
    double probability;
    double share;  ///< of it
    double gradient;
    double of_sums;

    Errors(const AttentionBackwardTrial& trial, int64_t query, int64_t key, int64_t head) {
      const SequenceShape& shape = trial.shape_;
      const int64_t column = head * shape.head_dim;
      const int64_t kv_column = head / shape.group() * shape.head_dim;
      double score = 0;
      double score_size = 0;
      double product = 0;
      double sizes = 0;
      for (int64_t i = 0; i < shape.head_dim; ++i) {
        const double s = trial.q_.get(query, column + i) * trial.k_.get(key, kv_column + i);
        const double gradient = trial.d_out_.get(query, column + i);
        const double of_value = gradient * trial.v_.get(key, kv_column + i);
        const double of_out = gradient * trial.o_.get(query, column + i);
        score += s;
        score_size += std::fabs(s);
        product += of_value - of_out;
        sizes += std::fabs(of_value) + std::fabs(of_out);
      }
      const double lse =
          trial.lse_.get(query / shape.tokens * shape.query_heads + head, query % shape.tokens);
      probability = std::exp(shape.scale * score - lse);
      const double sum_error = sum_tolerance(shape.head_dim);
      share = shape.scale * sum_error * score_size +
              4 * 0x1p-24 * (std::fabs(shape.scale * score) + std::fabs(lse)) + 8 * 0x1p-24 +
              roundoff(DType::bf16);
      gradient = std::fabs(probability * product);
      of_sums = probability * sum_error * sizes;
      if (probability ==
          0) {  // an infinite lse: the sums are not finite, or this is no part of them
        share = gradient = of_sums = 0;
      }
    }
    double of_probability(int64_t terms) const {
      return probability * (share + sum_tolerance(terms));
    }
    double of_score(int64_t terms) const {
      return gradient * (share + 4 * 0x1p-24 + sum_tolerance(terms)) + of_sums;
    }
  };

  SequenceShape shape_;
  Tensor& q_;
  Tensor& k_;
  Tensor& v_;
  Tensor& o_;
  Tensor& d_out_;
  Tensor& lse_;
  Tensor& d_q_;
  Tensor& d_k_;
  Tensor& d_v_;
};

}  // namespace

Operation attention_backward() {
  return operation_of<AttentionBackwardTrial, SequenceCase>("attention_backward", kCases);
}

}  // namespace weft::trial
