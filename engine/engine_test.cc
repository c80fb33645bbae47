#include "engine/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/relative_difference.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {
namespace {

/// One layer as wide as a real model's, so that products take the ways that small ones do not.
std::unique_ptr<Engine> wide_engine(const EngineOptions& options) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.vocabulary = 1000;
  config.eos = {};
  Weights weights = Weights::generate(config, 1, 2).value();
  return Engine::create(std::move(config), std::move(weights), options).value();
}

std::vector<int32_t> prompt_of(int64_t tokens) {
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(i * 7919 % 1000));
  }
  return prompt;
}

TEST(Engine, ChunksOfAnyLengthOfAWideModel) {
  EngineOptions options;
  options.workers = 2;
  options.context = 2048;
  options.chunk = 64;
  const auto chunked = wide_engine(options);
  options.chunk = 512;
  const auto whole = wide_engine(options);
  for (const int64_t tokens : {1, 3, 9, 63, 65, 200, 455, 513}) {
    const std::vector<int32_t> prompt = prompt_of(tokens);
    ASSERT_TRUE(chunked->generate(prompt, {}, 1).ok());
    ASSERT_TRUE(whole->generate(prompt, {}, 1).ok());
    // The same roundings in another order; a last chunk of one row keeps f32 (see PlanOptions).
    EXPECT_LE(relative_difference(chunked->last_logits(), whole->last_logits()), 1e-2) << tokens;
  }
}

/// Packed weights are the same weights: logits differ by the order of sums, and not at all between
/// numbers of workers.
TEST(Engine, PackedWeightsGiveTheLogitsOfPlainOnes) {
  EngineOptions options;
  options.context = 128;
  options.kv = DType::f32;
  options.round_activations = false;
  std::vector<std::vector<float>> logits;  // plain, packed
  for (const bool packed : {false, true}) {
    options.compress_weights = packed;
    std::vector<float> of_one;
    for (const int workers : {1, 2, 3}) {
      options.workers = workers;
      const auto engine = wide_engine(options);
      ASSERT_TRUE(engine->generate(prompt_of(70), {}, 9).ok());
      const std::vector<float> last(engine->last_logits().begin(), engine->last_logits().end());
      of_one = workers == 1 ? last : of_one;
      EXPECT_EQ(last, of_one) << workers << " workers";
      const double read = engine->decode_cost(0).weight_bytes;
      EXPECT_EQ(read < 0.76 * static_cast<double>(engine->weights().bytes()), packed);
    }
    logits.push_back(of_one);
  }
  EXPECT_LE(relative_difference(logits[0], logits[1]), 1e-5);
  EXPECT_NE(logits[0], logits[1]);  // or the packed ones were not read
}

/// What `weft bench decode` checks: a decode step's logits are those of the text scored as a whole.
TEST(Engine, LogitsOfDecodeAreThoseOfTheWholeTextAndARoundingTooManyIsNoticed) {
  EngineOptions options;
  options.workers = 2;
  options.context = 128;
  options.round_activations = false;
  options.kv = DType::f32;
  const auto exact = wide_engine(options);
  options.kv = DType::bf16;
  const auto rounded = wide_engine(options);
  const auto last = [](Engine& engine) {
    std::vector<int32_t> text = prompt_of(70);
    const std::vector<int32_t> drawn = engine.generate(text, {}, 9).value().tokens;
    text.insert(text.end(), drawn.begin(), drawn.end() - 1);
    return text;
  };
  const std::vector<int32_t> text = last(*exact);
  const double same = relative_difference(exact->last_logits(), exact->score(text)->last_logits);
  EXPECT_LT(same, exact->logits_tolerance() / 10);
  // A cache that is rounded, though the program keeps f32.
  const std::vector<float> wrong = rounded->score(text)->last_logits;
  EXPECT_GT(relative_difference(exact->last_logits(), wrong), exact->logits_tolerance());
  EXPECT_LT(relative_difference(exact->last_logits(), wrong), rounded->logits_tolerance());
}

TEST(Engine, ExtendsWhatItGenerated) {
  EngineOptions options;
  options.workers = 1;
  options.context = 64;
  const auto engine = wide_engine(options);
  EXPECT_FALSE(engine->extend(4).ok());  // nothing to extend
  const std::vector<int32_t> prompt = prompt_of(20);
  const auto all = engine->generate(prompt, {}, 12).value().tokens;
  auto parts = engine->generate(prompt, {}, 5).value().tokens;
  for (const int64_t more : {3, 4}) {
    const auto tokens = engine->extend(more).value().front().tokens;
    parts.insert(parts.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(parts, all);
}

TEST(Engine, WantsAPromptForEachSequence) {
  EngineOptions options;
  options.workers = 1;
  options.context = 64;
  const auto engine = wide_engine(options);
  const std::vector<Engine::Prompt> prompts = {prompt_of(5), prompt_of(7)};
  const auto two = engine->generate_batch(prompts, {}, 4);
  ASSERT_FALSE(two.ok());
  EXPECT_EQ(two.error().kind, ErrorKind::usage);
  const auto one = engine->generate_batch({prompts.data(), 1}, {}, 4);
  EXPECT_EQ(one.value().front().tokens, engine->generate(prompts[0], {}, 4).value().tokens);

  options.sequences = 2;
  const auto refused =
      Engine::create(engine->config(), Weights::describe(engine->config()), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::usage);
  EXPECT_NE(refused.error().message.find("one sequence at a time"), std::string::npos);
}

TEST(Engine, EndsAtTheContext) {
  EngineOptions options;
  options.workers = 2;
  options.context = 32;
  const auto engine = wide_engine(options);
  const auto result = engine->generate(prompt_of(30), {}, 100).value();
  EXPECT_EQ(result.stop, Stop::context);
  EXPECT_EQ(result.tokens.size(), 3);  // after positions 29, 30 and 31
  EXPECT_EQ(engine->generate(prompt_of(32), {}, 100).value().tokens.size(), 1);
  EXPECT_FALSE(engine->generate(prompt_of(33), {}, 1).ok());
  EXPECT_FALSE(engine->generate({}, {}, 1).ok());
}

TEST(Engine, InterruptedBetweenChunksOfAPrompt) {
  int asked = 0;
  int until = 3;
  EngineOptions options;
  options.workers = 2;
  options.context = 256;
  options.chunk = 16;
  options.interrupted = [&] { return ++asked == until; };
  const auto engine = wide_engine(options);
  const std::vector<int32_t> prompt = prompt_of(200);
  const Result<Generation> ended = engine->generate(prompt, {}, 4);
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().message, "the call was interrupted");
  EXPECT_EQ(asked, 3);  // of 13 chunks
  until = 4;
  EXPECT_FALSE(engine->score(prompt).ok());
  until = -1;
  const auto after = engine->generate(prompt, {}, 4);
  options.interrupted = {};
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->tokens, wide_engine(options)->generate(prompt, {}, 4)->tokens);
}

TEST(Engine, StopsWhenTheCallerSays) {
  EngineOptions options;
  options.workers = 2;
  options.context = 64;
  const auto engine = wide_engine(options);
  int64_t seen = 0;
  const auto result =
      engine->generate(prompt_of(8), {}, 50, [&](int32_t) { return ++seen < 4; }).value();
  EXPECT_EQ(result.stop, Stop::caller);
  EXPECT_EQ(result.tokens.size(), 4);
}

}  // namespace
}  // namespace weft
