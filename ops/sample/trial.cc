#include "ops/harness/trial.h"

#include "ops/sample/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t vocabulary;
  int64_t draws;
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
  float penalty;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("vocabulary", vocabulary);
    v.size("draws", draws);
    v.real("temperature", temperature, {.most = 100});
    v.size("k", top_k, {.least = 0});
    v.real("p", top_p, {});
    v.real("min_p", min_p, {});
    v.real("penalty", penalty, {.least = 0.01f, .most = 100});
  }
};

constexpr Case kCases[] = {
#include "ops/sample/cases.inc"
};

class SampleTrial : public Trial {
 public:
  SampleTrial(const Case& c, Random& random)
      : logits_(add("logits", Tensor::Role::inout, c.draws, c.vocabulary, DType::f32)),
        tokens_(output("tokens", 1, c.draws, DType::f32)) {
    logits_.fill(random, 3);
    for (int i = 0; i < 100; ++i) {
      history_.push_back(static_cast<int32_t>(random.below(c.vocabulary)));
    }
    options_ = {.temperature = c.temperature,
                .top_k = c.top_k,
                .top_p = c.top_p,
                .min_p = c.min_p,
                .repetition_penalty = c.penalty,
                .seed = random.next()};
  }

  int64_t rows() const override { return 1; }

  /// The token itself. f32 sums of a vocabulary of probabilities are good to 1e-5 of their total: a
  /// draw or a threshold so near to a boundary between two tokens may fall on either side.
  std::vector<Expectation> expect(Range rows) override {
    constexpr double kNear = 1e-5;
    std::vector<Expectation> result{Expectation(tokens_, rows)};
    for (int64_t i = 0; i < tokens_.columns(); ++i) {
      const SampleArgs args = args_of(i);
      const double uniform = uniform_draw(options_.seed, args.draw);
      const std::vector<int32_t> right = reference::right_tokens(args, uniform, kNear);
      result[0].value[static_cast<size_t>(i)] = right.front();
      result[0].others.emplace_back(right.begin() + 1, right.end());
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    const Range draws = share(tokens_.columns(), piece);
    for (int64_t i = draws.begin; i < draws.end; ++i) {
      tokens_.set(0, i, static_cast<float>(cpu::sample(args_of(i), scratch(piece))));
    }
  }

  size_t scratch_bytes() const override { return cpu::sample_scratch_bytes(logits_.columns()); }

  Work work() const override {
    return {.bytes = static_cast<double>(logits_.bytes()),
            .flops = static_cast<double>(logits_.rows() * logits_.columns())};
  }

 private:
  SampleArgs args_of(int64_t i) {
    return {.logits = static_cast<float*>(logits_.data()) + i * logits_.columns(),
            .vocabulary = logits_.columns(),
            .options = options_,
            .history = history_,
            .draw = static_cast<uint64_t>(i)};
  }

  Tensor& logits_;  // a row a draw
  Tensor& tokens_;  // exact in f32
  std::vector<int32_t> history_;
  SamplingOptions options_;
};

}  // namespace

Operation sample() { return operation_of<SampleTrial, Case>("sample", kCases); }

}  // namespace weft::trial
