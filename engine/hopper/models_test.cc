// Tiny models of every family on a GPU, or on the interpreter of its kernels, against the CPU:
// tokens one by one and logits, where both keep f32.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "arch/device.h"
#include "base/built.h"
#include "base/relative_difference.h"
#include "engine/diff.h"
#include "engine/engine.h"
#include "engine/hopper/lower.h"
#include "engine/hopper/runner.h"
#include "engine/test_latents.h"
#include "engine/test_name.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const fs::path kGoldenModels = fs::path(WEFT_SOURCE_DIR) / "tests/goldens/models";

// The resident kernel keeps 17 bits of its rows, which layers amplify (see Prefill).
constexpr double kTolerance = 2e-4;

Result<std::unique_ptr<Engine>> make_engine(const std::string& model, EngineOptions options) {
  options.kv = options.kv.value_or(DType::f32);
  options.round_activations = options.round_activations.value_or(false);
  ModelConfig config = read_config(kGoldenModels / model).value();
  Weights weights = Weights::open(kGoldenModels / model, config).value();
  return Engine::create(std::move(config), std::move(weights), options);
}

/// The same model on both.
struct Pair {
  std::unique_ptr<Engine> cpu;
  std::unique_ptr<Engine> gpu;
};

class HopperModels : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto device = open_device("cuda"); !device.ok()) {
      GTEST_SKIP() << device.error().message;
    }
  }

  static std::optional<Pair> make(const std::string& model, const EngineOptions& options) {
    EngineOptions on_gpu = options;
    on_gpu.device = "cuda";
    auto gpu = make_engine(model, on_gpu);
    EXPECT_TRUE(gpu.ok()) << gpu.error().message;
    if (!gpu.ok()) {
      return std::nullopt;
    }
    EngineOptions on_cpu = options;
    on_cpu.sequences = 1;
    on_cpu.workers = 1;
    return Pair{make_engine(model, on_cpu).value(), std::move(*gpu)};
  }

  /// Generates with both, and compares.
  static void compare(const Pair& pair, const std::vector<int32_t>& ids, int64_t tokens,
                      const SamplingOptions& sampling = {}) {
    SCOPED_TRACE(std::to_string(ids.size()) + " tokens of a prompt");
    const auto expected = pair.cpu->generate(ids, sampling, tokens, {}, Eos::ignore);
    const auto got = pair.gpu->generate(ids, sampling, tokens, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->tokens, expected->tokens);
    EXPECT_EQ(got->stop, expected->stop);
    EXPECT_LE(relative_difference(pair.gpu->last_logits(), pair.cpu->last_logits()), kTolerance);
  }
};

TEST_P(HopperModels, TokensAndLogitsAreTheCpus) {
  for (const bool compress : {false, true}) {
    SCOPED_TRACE(compress ? "compressed weights" : "plain weights");
    const auto pair = make(GetParam(), {.compress_weights = compress});
    ASSERT_TRUE(pair);
    compare(*pair, test_prompt(compress ? 1 : 9, pair->cpu->config().vocabulary), 12);
    if (HasFatalFailure()) {
      return;
    }
  }
}

TEST_P(HopperModels, ScoresAreTheCpus) {
  const auto pair = make(GetParam(), {});
  ASSERT_TRUE(pair);
  const std::vector<int32_t> ids = test_prompt(21, pair->cpu->config().vocabulary);
  const auto expected = pair->cpu->score(ids);
  const auto got = pair->gpu->score(ids);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_LE(relative_difference(got->last_logits, expected->last_logits), 5e-6);
  for (size_t i = 0; i < expected->logprobs.size(); ++i) {
    EXPECT_NEAR(got->logprobs[i], expected->logprobs[i], 1e-4) << i;
  }
}

std::vector<std::string> resident_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGoldenModels)) {
    if (std::string name = entry.path().filename().string();
        (name.ends_with("-bf16") && !name.starts_with("deepseek")) ||  // ranks of no multiples of 8
        name.find("-fp8") != std::string::npos || name == "llama-bias-f16" ||
        name == "gpt-oss-mxfp4") {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Slow, HopperModels, testing::ValuesIn(resident_models()), test_name);

class HopperOperations : public HopperModels {};

/// What does not depend on the model.
class HopperDecode : public HopperModels {};

TEST_P(HopperDecode, SeveralSequencesAreTheCpusOneByOne) {
  for (const int sequences : {2, 4, 5, 8}) {
    SCOPED_TRACE(std::to_string(sequences) + " sequences");
    // More than four round rows to bf16 where they meet weights: tokens may part at near ties, so
    // there the first ones' logits are compared.
    const bool rounds = sequences > 4;
    const int64_t tokens = rounds ? 1 : 6;
    const double tolerance = rounds ? 1e-2 : kTolerance;
    const auto pair = make(GetParam(), {.context = 40, .sequences = sequences});
    ASSERT_TRUE(pair);
    std::vector<Engine::Prompt> prompts;
    for (int i = 0; i < sequences; ++i) {
      prompts.push_back(test_prompt(1 + i * 2, pair->cpu->config().vocabulary));
    }
    for (const float temperature : {0.0f, 0.9f}) {
      SamplingOptions sampling;
      sampling.temperature = temperature;
      sampling.seed = 11;
      const auto got = pair->gpu->generate_batch(prompts, sampling, tokens, {}, Eos::ignore);
      ASSERT_TRUE(got.ok()) << got.error().message;
      for (int i = 0; i < sequences; ++i) {
        const auto at = static_cast<size_t>(i);
        SamplingOptions own = sampling;
        own.seed += at;
        const auto expected = pair->cpu->generate(prompts[at], own, tokens, {}, Eos::ignore);
        EXPECT_TRUE(rounds || (*got)[at].tokens == expected->tokens)
            << "sequence " << i << ", temperature " << temperature;
        EXPECT_LE(relative_difference(pair->gpu->last_logits(i), pair->cpu->last_logits()),
                  tolerance);
      }
    }
  }
}

/// Chunks that round the same numbers, but sum in other orders (see Prefill). Of two experts whose
/// logits nearly tie either may be drawn: more where there are some.
TEST_P(HopperDecode, ScoresInBf16AreTheCpus) {
  const auto pair = make(GetParam(), {.kv = DType::bf16, .round_activations = true});
  ASSERT_TRUE(pair);
  const double tolerance = pair->cpu->config().experts.count > 0 ? 3e-2 : 1e-2;
  for (const int64_t length : {5, 150}) {
    const std::vector<int32_t> ids = test_prompt(length, pair->cpu->config().vocabulary);
    const auto got = pair->gpu->score(ids);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_LE(relative_difference(got->last_logits, pair->cpu->score(ids)->last_logits), tolerance)
        << length << " tokens";
  }
}

/// In bf16 the first token is drawn from the logits of the prompt's last chunk, and the resident
/// kernel goes on from there.
TEST_P(HopperDecode, FirstTokensInBf16AreTheCpus) {
  for (const bool hold_once : {false, true}) {
    SCOPED_TRACE(hold_once ? "weights held once" : "weights held twice");
    const auto pair =
        make(GetParam(), {.kv = DType::bf16, .round_activations = true, .hold_once = hold_once});
    ASSERT_TRUE(pair);
    const double tolerance = pair->cpu->config().experts.count > 0 ? 3e-2 : 1e-2;
    const std::vector<int32_t> ids = test_prompt(40, pair->cpu->config().vocabulary);
    for (const SamplingOptions& sampling :
         {SamplingOptions{},
          SamplingOptions{.temperature = 0.7f, .repetition_penalty = 1.5f, .seed = 6}}) {
      for (const int64_t tokens : {1, 4}) {
        const auto expected = pair->cpu->generate(ids, sampling, tokens, {}, Eos::ignore);
        const auto got = pair->gpu->generate(ids, sampling, tokens, {}, Eos::ignore);
        ASSERT_TRUE(got.ok()) << got.error().message;
        EXPECT_EQ(got->tokens, expected->tokens);
        EXPECT_LE(relative_difference(pair->gpu->last_logits(), pair->cpu->last_logits()),
                  tolerance)
            << tokens << " tokens";
      }
    }
  }
}

/// Chunks find what is unpacked for them, layer by layer, and once more for the next prompt.
TEST_P(HopperDecode, WeightsHeldOnceAreTheSame) {
  for (const bool compress : {false, true}) {
    SCOPED_TRACE(compress ? "compressed weights" : "plain weights");
    const auto pair = make(GetParam(), {.compress_weights = compress, .hold_once = true});
    ASSERT_TRUE(pair);
    for (const int64_t length : {40, 7}) {
      const std::vector<int32_t> ids = test_prompt(length, pair->cpu->config().vocabulary);
      compare(*pair, ids, 4);
      const auto got = pair->gpu->score(ids);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_LE(relative_difference(got->last_logits, pair->cpu->score(ids)->last_logits),
                kTolerance);
    }
  }
}

/// Each sequence has the factors of its own length, and comes to the longer ones by itself.
/// f32: by launched steps.
class HopperLongRope : public HopperModels {};
TEST_P(HopperLongRope, IsEachSequencesOwn) {
  const auto pair = make(GetParam(), {.context = 90, .sequences = 3});
  ASSERT_TRUE(pair);
  ASSERT_EQ(pair->cpu->config().rope_scaling.original_context, 64);
  std::vector<Engine::Prompt> prompts;
  for (const int64_t length : {60, 7, 70}) {
    prompts.push_back(test_prompt(length, pair->cpu->config().vocabulary));
  }
  const auto got = pair->gpu->generate_batch(prompts, {}, 8, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(std::to_string(prompts[i].size()) + " tokens");
    const auto expected = pair->cpu->generate(prompts[i], {}, 8, {}, Eos::ignore);
    EXPECT_EQ((*got)[i].tokens, expected->tokens);
    EXPECT_LE(
        relative_difference(pair->gpu->last_logits(static_cast<int>(i)), pair->cpu->last_logits()),
        kTolerance);
  }
}

Result<std::unique_ptr<Subject>> make_subject(const ModelConfig& config, const Weights& weights,
                                              int64_t capacity) {
  if constexpr (built::kCuda) {
    return hopper::create_subject(
        config, weights, {.device = "cuda", .workers = 3, .capacity = capacity, .kv = DType::f32});
  } else {
    return device_error("built without CUDA");
  }
}

/// Each operation by itself, from what those before it have left.
TEST_P(HopperOperations, AreTheCpus) {
  const ModelConfig config = read_config(kGoldenModels / GetParam()).value();
  const Weights weights = Weights::open(kGoldenModels / GetParam(), config).value();
  constexpr int64_t kCapacity = 64;
  const auto subject = make_subject(config, weights, kCapacity);
  ASSERT_TRUE(subject.ok()) << subject.error().message;
  const auto differ =
      Differ::create(config, weights, **subject, {.capacity = kCapacity, .kv = DType::f32});
  const std::vector<int32_t> ids = test_prompt(4, config.vocabulary);
  const auto fed = (*differ)->feed(std::span(ids).first(3));
  ASSERT_TRUE(fed.ok()) << fed.error().message;
  EXPECT_FALSE(fed->has_value());
  const Program& program = (*subject)->program();
  const auto step = (*differ)->step(ids[3], static_cast<int32_t>(program.operations.size()));
  ASSERT_TRUE(step.ok()) << step.error().message;
  EXPECT_FALSE(step->fault.has_value()) << describe(program, *step->fault);
}

INSTANTIATE_TEST_SUITE_P(Some, HopperOperations,
                         testing::Values("olmoe-bf16", "qwen2-moe-bf16", "gpt-oss-mxfp4"),
                         test_name);

TEST_P(HopperDecode, SampledTokensAreTheCpus) {
  const auto pair = make(GetParam(), {});
  ASSERT_TRUE(pair);
  const std::vector<int32_t> ids = test_prompt(3, pair->cpu->config().vocabulary);
  for (const SamplingOptions& sampling :
       {SamplingOptions{.temperature = 0.8f, .repetition_penalty = 1.3f, .seed = 3},
        SamplingOptions{.temperature = 1.2f, .top_k = 20, .seed = 4},
        SamplingOptions{.temperature = 1.0f, .top_p = 0.7f, .seed = 5}}) {
    compare(*pair, ids, 8, sampling);
  }
}

TEST_P(HopperDecode, EndsWhereItIsToldAndWhereTheContextIsFull) {
  const auto pair = make(GetParam(), {.context = 16});
  ASSERT_TRUE(pair);
  const std::vector<int32_t> ids = test_prompt(5, pair->cpu->config().vocabulary);
  compare(*pair, ids, 100);  // until it is full
  int left = 3;
  const auto stopped = pair->gpu->generate(
      ids, {}, 100, [&](int32_t /*token*/) { return --left > 0; }, Eos::ignore);
  ASSERT_TRUE(stopped.ok()) << stopped.error().message;
  EXPECT_EQ(stopped->stop, Stop::caller);
  compare(*pair, ids, 4);  // as if nothing had been
}

INSTANTIATE_TEST_SUITE_P(Slow, HopperLongRope,
                         testing::Values("phi3-longrope-bf16", "phi3-longrope-f32"), test_name);

ModelConfig tiny_mixture(int64_t layers, int64_t hidden) {
  ModelConfig config = preset("mixtral-8x7b").value();
  config.layers = layers;
  config.hidden = hidden;
  config.query_heads = config.kv_heads = 2;
  config.head_dim = 32;
  config.vocabulary = 96;
  config.context = 64;
  return config;
}

/// The parameter: what lies between an expert's products.
class HopperExperts : public HopperModels {};

/// Experts whose columns are no whole slices, shared among workers unevenly; a warp's slices of a
/// unit are of several, with other windows each; and slots of which codes take one each, because a
/// row of all would be too long, and their last unit is folded.
TEST_P(HopperExperts, OfAnySizeAreTheCpus) {
  ModelConfig config = tiny_mixture(1, 72);
  config.experts.size = std::stoll(GetParam());
  const bool large = config.experts.size > 8192;
  config.experts.count = large ? 2 : 5;
  config.experts.chosen = large ? 2 : 3;
  const auto make = [&](const char* device) {
    return Engine::create(config, Weights::generate(config, 3, 2).value(),
                          {.device = device,
                           .workers = 2,
                           .kv = DType::f32,
                           .round_activations = false,
                           .compress_weights = !large})
        .value();
  };
  compare({make("cpu"), make("cuda")}, test_prompt(4, config.vocabulary), 4);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HopperExperts, testing::Values("192", "200", "8456"), test_name);

/// In MXFP4, of second products whose columns are dealt by halves of a unit.
TEST_F(HopperExperts, FoldedAreTheCpus) {
  ModelConfig config = preset("gpt-oss-20b").value();
  config.layers = 1;
  config.hidden = 64;
  config.query_heads = config.kv_heads = 1;
  config.vocabulary = 96;
  config.context = 64;
  config.experts.count = 4;
  config.experts.chosen = 3;
  config.experts.size = 1376;
  const auto make = [&](const char* device) {
    return Engine::create(
               config, Weights::generate(config, 3, 2).value(),
               {.device = device, .workers = 3, .kv = DType::f32, .round_activations = false})
        .value();
  };
  compare({make("cpu"), make("cuda")}, test_prompt(4, config.vocabulary), 4);
}

INSTANTIATE_TEST_SUITE_P(Some, HopperDecode, testing::Values("llama-bf16", "gpt-oss-mxfp4"),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Slow, HopperDecode,
                         testing::Values("qwen3-bf16", "llama-fp8-block", "olmoe-bf16",
                                         "qwen2-moe-bf16"),
                         test_name);

/// Several sequences read the union of what they draw: of experts of an odd number whose columns
/// are no whole slices, in several blocks of units, and beside sequences that have ended.
TEST_F(HopperExperts, OfSeveralSequencesAreTheCpus) {
  ModelConfig config = tiny_mixture(2, 256);
  config.experts = {.count = 5, .chosen = 2, .size = 200, .renormalise = true};
  const auto make = [&](const char* device, int sequences) {
    return Engine::create(config, Weights::generate(config, 3, 2).value(),
                          {.device = device,
                           .workers = 2,
                           .sequences = sequences,
                           .kv = DType::f32,
                           .round_activations = false,
                           .compress_weights = true})
        .value();
  };
  constexpr int kSequences = 3;
  const auto cpu = make("cpu", 1);
  const auto gpu = make("cuda", kSequences);
  EXPECT_GT(gpu->saved_bytes(), 0);  // launched steps read plain weights
  std::vector<Engine::Prompt> prompts;
  for (int i = 0; i < kSequences; ++i) {
    prompts.push_back(test_prompt(2 + i, config.vocabulary));
  }
  // The second one ends early, and the others go on in another launch.
  const auto begun = gpu->generate_batch(
      prompts, {}, 3, [](int sequence, int32_t /*token*/) { return sequence != 1; }, Eos::ignore);
  ASSERT_TRUE(begun.ok()) << begun.error().message;
  const auto extended = gpu->extend(4, {}, Eos::ignore);
  ASSERT_TRUE(extended.ok()) << extended.error().message;
  for (const size_t i : {0, 2}) {
    std::vector<int32_t> got = (*begun)[i].tokens;
    got.insert(got.end(), (*extended)[i].tokens.begin(), (*extended)[i].tokens.end());
    EXPECT_EQ(got, cpu->generate(prompts[i], {}, 7, {}, Eos::ignore)->tokens) << i;
    EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)), cpu->last_logits()),
              kTolerance)
        << i;
  }
}

/// The parameter: elements of a head. Sinks and windows where attention of a step is by mma, and
/// experts in MXFP4 whose rows are no whole stages or slices, in the resident kernel and launched.
class HopperSinks : public HopperModels {};

TEST_P(HopperSinks, AreTheCpus) {
  ModelConfig config = preset("gpt-oss-20b").value();
  config.layers = 2;
  config.hidden = 96;
  config.query_heads = 8;
  config.kv_heads = 2;
  config.head_dim = std::stoll(GetParam());
  config.vocabulary = 96;
  config.context = 64;
  config.layer_kinds.front().window = 5;
  config.experts.count = 5;
  config.experts.chosen = 3;
  config.experts.size = 160;
  const auto make = [&](const char* device, int sequences) {
    return Engine::create(config, Weights::generate(config, 3, 2).value(),
                          {.device = device,
                           .workers = 2,
                           .sequences = sequences,
                           .kv = DType::f32,
                           .round_activations = false})
        .value();
  };
  compare({make("cpu", 1), make("cuda", 1)}, test_prompt(9, config.vocabulary), 6);
  std::vector<Engine::Prompt> prompts;
  for (const int64_t length : {1, 9, 20}) {
    prompts.push_back(test_prompt(length, config.vocabulary));
  }
  for (const double limit : {config.experts.limit, 0.0}) {  // without a clamp steps are launched
    config.experts.limit = limit;
    const Pair pair{make("cpu", 1), make("cuda", 3)};
    const auto got = pair.gpu->generate_batch(prompts, {}, 6, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    for (size_t i = 0; i < prompts.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} tokens of a prompt, limit {}", prompts[i].size(), limit));
      const auto expected = pair.cpu->generate(prompts[i], {}, 6, {}, Eos::ignore);
      EXPECT_EQ((*got)[i].tokens, expected->tokens);
      EXPECT_LE(
          relative_difference(pair.gpu->last_logits(static_cast<int>(i)), pair.cpu->last_logits()),
          kTolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, HopperSinks, testing::Values("64", "72"), test_name);

/// The parameter: a preset. Long rows of attention, whose splits are merged once.
class HopperMergedOnce : public HopperModels {};

TEST_P(HopperMergedOnce, AreTheCpus) {
  ModelConfig config = preset(GetParam()).value();
  config.layers = 1;
  config.hidden = 64;
  config.query_heads = 4608 / config.head_dim;  // odd in a group, with key and value
  config.kv_heads = 4;
  config.vocabulary = 96;
  config.context = 640;
  config.layer_kinds.resize(1);
  config.layer_kinds.front().window = 0;
  config.experts.count = std::min<int64_t>(config.experts.count, 4);
  config.experts.chosen = std::min<int64_t>(config.experts.chosen, 2);
  config.experts.size = std::min<int64_t>(config.experts.size, 64);
  config.ffn = 64;
  const auto make = [&](const char* device) {
    return Engine::create(
               config, Weights::generate(config, 3, 2).value(),
               {.device = device, .workers = 20, .kv = DType::f32, .round_activations = false})
        .value();
  };
  ASSERT_TRUE(hopper::plan_options(config, 20, 640, DType::f32, 1).merge_once);
  compare({make("cpu"), make("cuda")}, test_prompt(140, config.vocabulary), 3);
}

INSTANTIATE_TEST_SUITE_P(Some, HopperMergedOnce, testing::Values("mistral-7b", "gpt-oss-20b"),
                         test_name);

/// The parameter: what weights are in.
class HopperLatents : public HopperModels {
 protected:
  static std::unique_ptr<Engine> make(const char* device, int sequences, bool rounds) {
    const ModelConfig made = latent_config(GetParam());
    return Engine::create(made, Weights::generate(made, 3, 2).value(),
                          {.device = device,
                           .workers = 2,
                           .sequences = sequences,
                           .kv = rounds ? DType::bf16 : DType::f32,
                           .round_activations = rounds})
        .value();
  }
};

TEST_P(HopperLatents, TokensAreTheCpus) {
  const Pair pair{make("cpu", 1, false), make("cuda", 2, false)};
  const int64_t vocabulary = pair.cpu->config().vocabulary;
  const std::vector<Engine::Prompt> prompts{test_prompt(1, vocabulary),
                                            test_prompt(21, vocabulary)};
  const auto got = pair.gpu->generate_batch(prompts, {}, 4, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto expected = pair.cpu->generate(prompts[i], {}, 4, {}, Eos::ignore);
    EXPECT_EQ((*got)[i].tokens, expected->tokens);
    EXPECT_LE(
        relative_difference(pair.gpu->last_logits(static_cast<int>(i)), pair.cpu->last_logits()),
        kTolerance);
  }
}

/// By mla_decode: scores and, where the heads' matrix is in eight bits, a step after each prompt.
TEST_P(HopperLatents, InBf16LogitsAreTheCpus) {
  const Pair pair{make("cpu", 1, true), make("cuda", 2, true)};
  const int64_t vocabulary = pair.cpu->config().vocabulary;
  const std::vector<Engine::Prompt> prompts{test_prompt(3, vocabulary),
                                            test_prompt(71, vocabulary)};
  const auto got = pair.gpu->generate_batch(prompts, {}, 1, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  std::vector<std::vector<float>> expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    expected.push_back(pair.cpu->score(prompts[i])->last_logits);
    EXPECT_LE(relative_difference(pair.gpu->last_logits(static_cast<int>(i)), expected[i]), 3e-2);
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto score = pair.gpu->score(prompts[i]);
    ASSERT_TRUE(score.ok()) << score.error().message;
    EXPECT_LE(relative_difference(score->last_logits, expected[i]), 3e-2);
  }
}

/// One sequence: the resident kernel, where the cache and the heads' matrix are in bf16. Two
/// splits.
TEST_P(HopperLatents, OneSequencesLogitsAreTheCpus) {
  const auto make_one = [](const char* device) {
    ModelConfig made = latent_config(GetParam());
    made.query_heads = 9;
    return Engine::create(
               made, Weights::generate(made, 3, 2).value(),
               {.device = device, .workers = 3, .kv = DType::bf16, .round_activations = false})
        .value();
  };
  const Pair pair{make_one("cpu"), make_one("cuda")};
  EXPECT_EQ(pair.gpu->saved_bytes() != 0, GetParam() == "bf16");  // launched steps pack nothing
  for (const int64_t length : {1, 66}) {
    const std::vector<int32_t> ids = test_prompt(length, pair.cpu->config().vocabulary);
    const auto expected = pair.cpu->generate(ids, {}, 3, {}, Eos::ignore);
    const auto got = pair.gpu->generate(ids, {}, 3, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->tokens, expected->tokens);
    EXPECT_LE(relative_difference(pair.gpu->last_logits(), pair.cpu->last_logits()), 3e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, HopperLatents, testing::Values("bf16", "fp8-block"), test_name);

/// The parameter: what the models are like; "dense": without experts.
class HopperResidentLatents : public HopperModels {
 protected:
  static std::unique_ptr<Engine> make(const char* device, int sequences, int workers) {
    const bool dense = GetParam() == "dense";
    ModelConfig made = latent_config(dense ? "bf16" : GetParam());
    made.query_heads = 9;
    made.experts = dense ? Experts{} : made.experts;
    if (GetParam() == "v3-bf16") {  // lanes have more than four each
      made.experts.count = 140;
      made.experts.size = 48;
    }
    return Engine::create(made, Weights::generate(made, 3, 2).value(),
                          {.device = device,
                           .workers = workers,
                           .sequences = sequences,
                           .kv = DType::bf16,
                           .round_activations = false,
                           .compress_weights = true})
        .value();
  }
};

/// Sequences, of one split of their keys and of two; of one worker, values' rows come in parts. One
/// ends early, and the others go on in another launch.
TEST_P(HopperResidentLatents, LogitsAreTheCpus) {
  const auto cpu = make("cpu", 1, 1);
  struct Case {
    int sequences, workers;
  };
  for (const Case& at : {Case{1, 3}, Case{2, 3}, Case{3, 1}, Case{8, 3}}) {
    SCOPED_TRACE(std::to_string(at.sequences) + " sequences");
    const auto gpu = make("cuda", at.sequences, at.workers);
    EXPECT_NE(gpu->saved_bytes(), 0);  // launched steps pack nothing
    // More than four round their rows to bf16 (see HopperDecode).
    const bool rounds = at.sequences > 4;
    std::vector<Engine::Prompt> prompts;
    for (int i = 0; i < at.sequences; ++i) {
      prompts.push_back(test_prompt(1 + (i + 2) % 3 * 33, cpu->config().vocabulary));
    }
    auto begun = gpu->generate_batch(
        prompts, {}, rounds ? 1 : 2, [](int sequence, int32_t /*token*/) { return sequence != 1; },
        Eos::ignore);
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    if (!rounds) {
      const auto extended = gpu->extend(2, {}, Eos::ignore);
      ASSERT_TRUE(extended.ok()) << extended.error().message;
      for (size_t i = 0; i < prompts.size(); ++i) {
        auto& tokens = (*begun)[i].tokens;
        tokens.insert(tokens.end(), (*extended)[i].tokens.begin(), (*extended)[i].tokens.end());
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (i == 1) {
        continue;
      }
      const auto expected = cpu->generate(prompts[i], {}, rounds ? 1 : 4, {}, Eos::ignore);
      EXPECT_TRUE(rounds || (*begun)[i].tokens == expected->tokens) << "sequence " << i;
      EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)), cpu->last_logits()),
                rounds ? 1e-2 : kTolerance)
          << "sequence " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slow, HopperResidentLatents, testing::Values("bf16", "v3-bf16", "dense"),
                         test_name);

}  // namespace
}  // namespace weft
