#include <cmath>

#include "ops/harness/prefill_trial.h"
#include "ops/token_logprob/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  float deviation;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns);
    v.real("deviation", deviation, {.least = 0, .most = 1e3});
  }
};

constexpr Case kCases[] = {
#include "ops/token_logprob/cases.inc"
};

class TokenLogprobTrial : public PrefillTrial {
 public:
  TokenLogprobTrial(const Case& c, Random& random)
      : logits_(input("logits", c.rows, c.columns, DType::f32, random, c.deviation,
                      gap_after(c.columns))),
        out_(output("out", 1, c.rows, DType::f32)) {
    for (int64_t r = 0; r < c.rows; ++r) {
      tokens_.push_back(static_cast<int32_t>(r == 0 ? c.columns - 1 : random.below(c.columns)));
    }
    args_ = {.logits = logits_.in(),
             .tokens = tokens_.data(),
             .columns = c.columns,
             .out = static_cast<float*>(out_.data())};
  }

  int64_t rows() const override { return 1; }

  /// Exponentials' sum has no cancellation: its relative error, that of a sum and of 4 units of an
  /// exponential, is the logarithm's absolute one. The differences and the logarithm round.
  std::vector<Expectation> expect(Range /*rows*/) override {
    std::vector<Expectation> result{Expectation(out_, {0, 1})};
    Expectation& out = result[0];
    reference::token_logprob(args_, {0, logits_.rows()}, out.value.data());
    for (size_t i = 0; i < out.value.size(); ++i) {
      out.tolerance[i] =
          sum_tolerance(args_.columns) + 0x1p-24 * (4 + 2 * std::fabs(out.value[i]) +
                                                    std::log(static_cast<double>(args_.columns)));
    }
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::token_logprob(args_, share(logits_.rows(), piece));
  }

  Work work() const override {
    return {.bytes = static_cast<double>(logits_.bytes()),
            .flops = 20 * static_cast<double>(logits_.rows() * logits_.columns())};
  }

 protected:
  std::string_view refuse(Arch /*arch*/) const override { return {}; }

  Status launch_rows(Arch arch, Stream stream) override {
    TokenLogprobArgs args = args_;
    args.logits = logits_.in(Side::device);
    WEFT_ASSIGN(args.tokens, on_device(tokens_));
    args.out = static_cast<float*>(out_.data(Side::device));
    return chunk_kernels(arch)->token_logprob(args, logits_.rows(), stream);
  }

 private:
  Tensor& logits_;
  Tensor& out_;
  std::vector<int32_t> tokens_;
  TokenLogprobArgs args_;
};

}  // namespace

Operation token_logprob() { return operation_of<TokenLogprobTrial, Case>("token_logprob", kCases); }

}  // namespace weft::trial
