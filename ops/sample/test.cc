#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/harness/tensor.h"
#include "ops/harness/test_checks.h"
#include "ops/sample/op.h"

namespace weft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int32_t sample(std::vector<float> logits, const SamplingOptions& options, uint64_t draw = 0,
               std::vector<int32_t> history = {}) {
  const auto vocabulary = static_cast<int64_t>(logits.size());
  std::vector<uint64_t> scratch(cpu::sample_scratch_bytes(vocabulary) / 8 + 1);
  return cpu::sample({.logits = logits.data(),
                      .vocabulary = vocabulary,
                      .options = options,
                      .history = history,
                      .draw = draw},
                     std::as_writable_bytes(std::span(scratch)));
}

TEST(Sample, MatchesTheReference) { trial::expect_right("sample"); }

TEST(Sample, GreedyTakesTheLowestOfEquals) {
  for (int i = 0; i <= static_cast<int>(cpu::detected_isa()); ++i) {
    cpu::force_isa(static_cast<cpu::Isa>(i));
    for (const size_t size : {1, 5, 16, 63, 64, 65, 200}) {
      for (size_t at = 0; at < size; ++at) {
        std::vector<float> logits(size, -1);
        logits[at] = 2;
        logits[size - 1] = 2;
        EXPECT_EQ(sample(logits, {}), at);
      }
    }
  }
  cpu::force_isa(std::nullopt);
}

TEST(Sample, NaNCountsAsMinusInfinity) {
  EXPECT_EQ(sample({kNaN, 1, kNaN, 2, kNaN}, {}), 3);
  EXPECT_EQ(sample({kNaN, -kInfinity}, {}), 0);
  EXPECT_EQ(sample({kNaN, kNaN}, {.temperature = 1}), 0);
  EXPECT_EQ(sample({0, kNaN, kInfinity, kInfinity}, {.temperature = 1}), 2);
  for (uint64_t draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sample({kNaN, -kInfinity, 3, kNaN}, {.temperature = 1, .top_p = 0.9f}, draw), 2);
  }
}

TEST(Sample, PenalisesEachTokenOfTheHistoryOnce) {
  const SamplingOptions options{.repetition_penalty = 2};
  EXPECT_EQ(sample({4, 3}, options, 0, {0, 0, 0}), 1);  // 4 / 2 < 3
  EXPECT_EQ(sample({5, 2}, options, 0, {0, 0, 0}), 0);  // 5 / 2 > 2, though 5 / 4 < 2
  EXPECT_EQ(sample({-1, -1.5f}, options, 0, {0}), 1);   // -2 < -1.5
  EXPECT_EQ(sample({4, 3}, options, 0, {-1, 2, 1 << 30}), 0);
}

TEST(Sample, ASeedRepeats) {
  std::vector<float> logits(100, 0);
  const SamplingOptions options{.temperature = 1, .seed = 9};
  std::vector<int32_t> tokens;
  bool differs = false;
  for (uint64_t draw = 0; draw < 50; ++draw) {
    tokens.push_back(sample(logits, options, draw));
    EXPECT_EQ(sample(logits, options, draw), tokens.back());
    differs = differs || tokens.back() != tokens.front();
  }
  EXPECT_TRUE(differs);
}

TEST(Sample, BesideABoundaryEitherTokenIsRightAndNoOther) {
  constexpr double kNear = 1e-5;
  std::vector<float> logits(4, 0);
  SampleArgs args;
  args.logits = logits.data();
  args.vocabulary = 4;
  args.options.temperature = 1;
  using Tokens = std::vector<int32_t>;
  EXPECT_EQ(reference::right_tokens(args, 0.5, kNear), (Tokens{1, 2}));
  EXPECT_EQ(reference::right_tokens(args, 0.5 - kNear / 2, kNear), (Tokens{1, 2}));
  EXPECT_EQ(reference::right_tokens(args, 0.5 + 2 * kNear, kNear), (Tokens{2}));
  EXPECT_EQ(reference::right_tokens(args, 0, kNear), (Tokens{0}));
  EXPECT_EQ(reference::right_tokens(args, 1, kNear), (Tokens{3}));
  args.options.top_p = 0.5f;  // two tokens, or three
  EXPECT_EQ(reference::right_tokens(args, 0.9, kNear), (Tokens{1, 2}));
  EXPECT_EQ(reference::right_tokens(args, 0.2, kNear), (Tokens{0}));
  args.options.top_p = 1;
  args.options.min_p = 1;  // all are as likely as the best, or none but it is
  EXPECT_EQ(reference::right_tokens(args, 0.6, kNear), (Tokens{0, 1, 2}));
  logits = {-30, 0, -30, -30};
  args.options.min_p = 0;
  EXPECT_EQ(reference::right_tokens(args, 0.6, kNear), (Tokens{1}));
}

// So large a vocabulary has a boundary near every draw.
TEST(Sample, ATokenThatIsNotDrawnIsNoticedBesideABoundaryToo) {
  const auto selected = trial::select_cases(
      {.operations = {"sample"},
       .shapes = {"vocabulary=100000,draws=8,temperature=3,k=0,p=0.95,min_p=0,penalty=1"}},
      {trial::Use::check});
  ASSERT_TRUE(selected.ok()) << selected.error().message;
  trial::Random random(5);
  const auto drawing = selected->front().info.make(random);
  const std::vector<trial::Expectation> expectations = trial::expect_all_rows(*drawing);
  drawing->prepare(1);
  drawing->restore();
  drawing->run_all(1);
  const auto mismatch = trial::compare(expectations);
  EXPECT_FALSE(mismatch) << mismatch->message;
  trial::Tensor& tokens = *drawing->tensors()[1];
  ASSERT_EQ(tokens.name(), "tokens");
  size_t beside_a_boundary = 0;
  for (int64_t i = 0; i < tokens.columns(); ++i) {
    beside_a_boundary += expectations[0].others[static_cast<size_t>(i)].empty() ? 0 : 1;
    const auto drawn = static_cast<float>(tokens.get(0, i));
    tokens.set(0, i, drawn < 50000 ? drawn + 500 : drawn - 500);
    EXPECT_TRUE(trial::compare(expectations)) << i;
    tokens.set(0, i, drawn);
  }
  EXPECT_GT(beside_a_boundary, 0);
}

TEST(Sample, DrawsAreUniform) {
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  for (const uint64_t seed : {0, 1, 2}) {
    std::vector<int> count(kBins);
    double sum = 0;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const float u = uniform_draw(seed, draw);
      ASSERT_GE(u, 0);
      ASSERT_LT(u, 1);
      ++count[static_cast<size_t>(u * kBins)];
      sum += u;
    }
    double chi_square = 0;
    for (const int n : count) {
      const double expected = static_cast<double>(kDraws) / kBins;
      chi_square += (n - expected) * (n - expected) / expected;
    }
    EXPECT_LT(chi_square, 120);  // 63 degrees of freedom: above once in 50000
    EXPECT_NEAR(sum / kDraws, 0.5, 5 / std::sqrt(12.0 * kDraws));
  }
}

// The frequencies of many draws against the probabilities themselves.
TEST(Sample, FollowsTheDistribution) {
  constexpr int kVocabulary = 40;
  constexpr int kDraws = 20000;
  std::vector<float> logits(kVocabulary);
  trial::Random random(3);
  for (float& logit : logits) {
    logit = 2 * random.normal();
  }
  const float temperature = 1.3f;
  double sum = 0;
  std::vector<double> probability;
  for (const float logit : logits) {
    probability.push_back(std::exp(logit / temperature));
    sum += probability.back();
  }
  std::vector<int> count(kVocabulary);
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    ++count[static_cast<size_t>(sample(logits, {.temperature = temperature, .seed = 4}, draw))];
  }
  for (size_t i = 0; i < count.size(); ++i) {
    const double p = probability[i] / sum;
    EXPECT_NEAR(count[i], p * kDraws, 5 * std::sqrt(kDraws * p * (1 - p)) + 1);
  }
}

}  // namespace
}  // namespace weft
