// Tiny models of every family, and the demo model, decoded on the simulated GPUs by the resident
// kernel, against the CPU: tokens one by one, and logits where both keep f32. Whatever the
// simulator's sanitizers find is an error.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "arch/device.h"
#include "base/relative_difference.h"
#include "engine/cdna/layout.h"
#include "engine/engine.h"
#include "engine/test_latents.h"
#include "engine/test_name.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = WEFT_SOURCE_DIR;

// The resident kernel keeps 17 bits of its rows, which layers amplify.
constexpr double kTolerance = 2e-4;

std::unique_ptr<Engine> make_engine(const fs::path& folder, EngineOptions options) {
  options.kv = options.kv.value_or(DType::f32);
  ModelConfig config = read_config(folder).value();
  Weights weights = Weights::open(folder, config).value();
  auto engine = Engine::create(std::move(config), std::move(weights), options);
  EXPECT_TRUE(engine.ok()) << engine.error().message;
  return engine.ok() ? std::move(*engine) : nullptr;
}

/// Generates with both, and compares.
void compare(const fs::path& folder, const std::string& device, int workers, int64_t prompt_tokens,
             int64_t tokens, DType kv = DType::f32, const SamplingOptions& sampling = {},
             bool packed = false) {
  const int64_t context = prompt_tokens + tokens + 16;
  const auto cpu = make_engine(folder, {.workers = 1, .context = context, .kv = kv});
  const auto gpu = make_engine(folder, {.device = device,
                                        .workers = workers,
                                        .context = context,
                                        .kv = kv,
                                        .compress_weights = packed});
  ASSERT_NE(gpu, nullptr);
  const std::vector<int32_t> ids = test_prompt(prompt_tokens, cpu->config().vocabulary);
  const auto expected = cpu->generate(ids, sampling, tokens, {}, Eos::ignore);
  const auto got = gpu->generate(ids, sampling, tokens, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->tokens, expected->tokens);
  EXPECT_EQ(got->stop, expected->stop);
  EXPECT_LE(relative_difference(gpu->last_logits(), cpu->last_logits()),
            kv == DType::f32 ? kTolerance : 1e-2);
}

class CdnaModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (const auto opened = open_device(device()); !opened.ok()) {
      GTEST_SKIP() << opened.error().message;
    }
  }
  static std::string device() { return "sim:" + std::get<0>(GetParam()); }
  static fs::path folder() {
    return kSource / "tests/goldens/models" / (std::get<1>(GetParam()) + "-bf16");
  }
};

TEST_P(CdnaModels, TokensAndLogitsAreTheCpus) {
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed);
    compare(folder(), device(), 3, 5, 5, DType::f32, {}, packed);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Slow, CdnaModels,
    testing::Combine(testing::Values("gfx942", "gfx950"),
                     testing::Values("llama", "gemma2", "gemma3", "granite", "instella", "llama3",
                                     "mistral", "olmo2", "phi3", "phi3-longrope", "qwen2",
                                     "qwen2-yarn", "qwen3", "smollm3", "starcoder2")),
    target_test_name);

INSTANTIATE_TEST_SUITE_P(SlowExperts, CdnaModels,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::Values("mixtral", "olmoe", "qwen2-moe",
                                                          "qwen3-moe")),
                         target_test_name);

/// Weights in other formats than bf16.
class CdnaFormats : public CdnaModels {
 protected:
  static fs::path folder() { return kSource / "tests/goldens/models" / std::get<1>(GetParam()); }
};

TEST_P(CdnaFormats, TokensAndLogitsAreTheCpus) { compare(folder(), device(), 3, 9, 8); }

/// hold_once: token by token.
void compare_scores(const fs::path& folder, const std::string& device, bool hold_once) {
  const auto cpu = make_engine(folder, {.workers = 1, .context = 64});
  const auto gpu =
      make_engine(folder, {.device = device, .workers = 2, .context = 64, .hold_once = hold_once});
  ASSERT_NE(gpu, nullptr);
  const std::vector<int32_t> ids = test_prompt(6, cpu->config().vocabulary);
  const auto expected = cpu->score(ids);
  const auto got = gpu->score(ids);
  ASSERT_TRUE(got.ok()) << got.error().message;
  ASSERT_EQ(got->logprobs.size(), expected->logprobs.size());
  for (size_t i = 0; i < got->logprobs.size(); ++i) {
    EXPECT_NEAR(got->logprobs[i], expected->logprobs[i], 1e-3);
  }
}

TEST_P(CdnaFormats, ScoresAreTheCpus) { compare_scores(folder(), device(), true); }

/// Experts in MXFP4.
class CdnaMx : public CdnaFormats {};

TEST_P(CdnaMx, TokensAndLogitsAreTheCpus) { compare(folder(), device(), 3, 9, 8); }

TEST_P(CdnaMx, ScoresAreTheCpus) { compare_scores(folder(), device(), true); }

INSTANTIATE_TEST_SUITE_P(Slow, CdnaMx,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::Values("gpt-oss-mxfp4")),
                         target_test_name);

INSTANTIATE_TEST_SUITE_P(Slow, CdnaFormats,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::Values("llama-fp8-block", "llama-fp8-row",
                                                          "llama-fp8-channel", "llama-fp8-tensor",
                                                          "llama-bias-f16")),
                         target_test_name);

/// What does not depend on the model.
class CdnaDecode : public CdnaModels {};

TEST_P(CdnaDecode, AnyWorkersAndCachesGiveTheCpusTokens) {
  compare(folder(), device(), 1, 3, 4);
  compare(folder(), device(), 5, 3, 4, DType::bf16);
}

/// Some too large for their column's window, and in one product some too small for any, which is
/// plain therefore.
TEST_P(CdnaDecode, PackedWeightsOfAllSizesGiveTheCpusTokens) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 2;
  config.hidden = 96;
  config.ffn = 192;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 24;
  config.vocabulary = 1000;
  const auto make = [&](EngineOptions options) {
    Weights weights = Weights::generate(config, 3, 1).value();
    const auto plant = [&](Role role, int64_t layer, int64_t step, uint16_t bits) {
      const Tensor& tensor = weights.get(role, layer);
      auto* data = reinterpret_cast<uint16_t*>(const_cast<std::byte*>(tensor.data));
      for (int64_t i = step / 2; i < tensor.elements(); i += step) {
        data[i] = bits;
      }
    };
    plant(Role::down, 0, 701, 0x4040);   // 3
    plant(Role::query, 1, 503, 0xbf80);  // -1
    plant(Role::gate, 1, 509, 0);
    plant(Role::embedding, -1, 521, 0x4000);  // 2; of the head, too
    plant(Role::attention_out, 0, 10000, 0x0001);
    options.kv = DType::f32;
    options.context = 64;
    return Engine::create(config, std::move(weights), options).value();
  };
  const auto cpu = make({.workers = 1});
  const auto gpu = make({.device = device(), .workers = 2, .compress_weights = true});
  EXPECT_GT(gpu->saved_bytes(), 0);
  const std::vector<int32_t> ids = test_prompt(4, config.vocabulary);
  const auto expected = cpu->generate(ids, {}, 6, {}, Eos::ignore);
  const auto got = gpu->generate(ids, {}, 6, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->tokens, expected->tokens);
  EXPECT_LE(relative_difference(gpu->last_logits(), cpu->last_logits()), kTolerance);
}

/// Each filter by itself, and all of them with a penalty.
TEST_P(CdnaDecode, SampledTokensAreTheCpus) {
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    SamplingOptions sampling;
    sampling.temperature = i == 5 ? 0.0f : 0.9f;
    sampling.top_k = i == 1 || i == 4 ? 20 : 0;
    sampling.top_p = i == 2 || i == 4 ? 0.8f : 1;
    sampling.min_p = i == 3 || i == 4 ? 0.02f : 0;
    sampling.repetition_penalty = i >= 4 ? 1.3f : 1;
    sampling.seed = 11 + static_cast<uint64_t>(i);
    compare(folder(), device(), 2, 3, 6, DType::f32, sampling);
  }
}

/// Each of several sequences has the tokens that the CPU gives it alone, with prompts of other
/// lengths; one of them is stopped in the middle.
void compare_several(const fs::path& folder, const std::string& device, int workers,
                     EngineOptions options, const SamplingOptions& sampling = {}) {
  constexpr int64_t kTokens = 5;
  constexpr int64_t kStopped = 2;  // of the last sequence
  const auto count = static_cast<size_t>(options.sequences);
  const auto cpu = make_engine(folder, {.workers = 1, .context = 32});
  options.device = device;
  options.workers = workers;
  options.context = 32;
  const auto gpu = make_engine(folder, options);
  ASSERT_NE(gpu, nullptr);
  const std::vector<int32_t> ids = test_prompt(12, cpu->config().vocabulary);
  std::vector<Engine::Prompt> prompts;
  for (size_t i = 0; i < count; ++i) {
    const auto first = ids.begin() + static_cast<int64_t>(i % 4);
    prompts.emplace_back(first, first + static_cast<int64_t>(2 + i % 3 * 2));
  }
  std::vector<size_t> taken(count);
  const auto got = gpu->generate_batch(
      prompts, sampling, kTokens,
      [&](int sequence, int32_t) {
        const auto s = static_cast<size_t>(sequence);
        return ++taken[s] < kStopped || s + 1 < count;
      },
      Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    SamplingOptions own = sampling;
    own.seed += i;
    const bool stopped = i + 1 == count;
    const auto expected =
        cpu->generate(prompts[i], own, stopped ? kStopped : kTokens, {}, Eos::ignore);
    EXPECT_EQ((*got)[i].tokens, expected->tokens);
    EXPECT_EQ((*got)[i].stop, stopped ? Stop::caller : expected->stop);
    if (!stopped) {
      EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)), cpu->last_logits()),
                kTolerance);
    }
  }
}

TEST_P(CdnaDecode, SeveralSequencesHaveTheCpusTokens) {
  compare_several(folder(), device(), 3, {.sequences = 3});
}

TEST_P(CdnaFormats, SeveralSequencesHaveTheCpusTokens) {
  compare_several(folder(), device(), 2, {.sequences = 3});
}

/// What the resident kernel has no form for: steps are launched, a kernel an operation.
class CdnaLaunched : public CdnaFormats {};

TEST_P(CdnaLaunched, TokensAndLogitsAreTheCpus) {
  SamplingOptions sampled;
  sampled.temperature = 0.9f;
  sampled.top_p = 0.9f;
  sampled.seed = 5;
  compare_several(folder(), device(), 2, {.sequences = 3, .round_activations = false});
  if (std::get<0>(GetParam()) == "gfx942") {  // it is the host that draws
    compare_several(folder(), device(), 2, {.sequences = 2, .round_activations = false}, sampled);
  }
}

/// In bf16, where keys of all sequences are dealt to all compute units; sinks and windows.
class CdnaLaunchedInBf16 : public CdnaFormats {};

TEST_P(CdnaLaunchedInBf16, LogitsAreTheCpus) {
  const auto make = [&](EngineOptions options) {
    options.context = 256;
    options.kv = DType::bf16;
    options.round_activations = true;
    return make_engine(folder(), options);
  };
  const auto cpu = make({.workers = 1});
  const auto gpu = make({.device = device(), .sequences = 3});
  std::vector<Engine::Prompt> prompts;
  for (const int64_t length : {1, 200, 37}) {
    prompts.push_back(test_prompt(length, cpu->config().vocabulary));
  }
  const auto got = gpu->generate_batch(prompts, {}, 1, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)),
                                  cpu->score(prompts[i])->last_logits),
              3e-2);
  }
}

INSTANTIATE_TEST_SUITE_P(Slow, CdnaLaunchedInBf16,
                         testing::Values(std::tuple("gfx942", "gpt-oss-mxfp4"),
                                         std::tuple("gfx950", "mixtral-bf16")),
                         target_test_name);

/// More sequences than the resident kernel takes.
class SlowCdnaMany : public CdnaModels {};

TEST_P(SlowCdnaMany, SequencesHaveTheCpusTokens) {
  compare_several(folder(), device(), 2, {.sequences = 20, .round_activations = false});
}

INSTANTIATE_TEST_SUITE_P(Slow, CdnaLaunched,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::Values("mixtral-bf16", "olmoe-bf16",
                                                          "qwen2-moe-bf16", "qwen3-moe-bf16",
                                                          "gpt-oss-mxfp4", "deepseek-v3-fp8",
                                                          "llama-f32", "gemma2-f32")),
                         target_test_name);

TEST_P(CdnaDecode, ScoresAreTheCpus) { compare_scores(folder(), device(), false); }

TEST_P(CdnaDecode, StopsWhereTheCallerOrTheModelSays) {
  const auto gpu = make_engine(folder(), {.device = device(), .workers = 2, .context = 64});
  ASSERT_NE(gpu, nullptr);
  const std::vector<int32_t> ids = test_prompt(4, gpu->config().vocabulary);
  int taken = 0;
  const auto stopped = gpu->generate(
      ids, {}, 20, [&](int32_t) { return ++taken < 3; }, Eos::ignore);
  ASSERT_TRUE(stopped.ok()) << stopped.error().message;
  EXPECT_EQ(stopped->stop, Stop::caller);
  EXPECT_EQ(stopped->tokens.size(), 3u);
  const auto again = gpu->generate(ids, {}, 5, {}, Eos::ignore);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(std::vector<int32_t>(again->tokens.begin(), again->tokens.begin() + 3),
            stopped->tokens);
}

/// Attention over latent rows, of 512 + 64 elements. The second parameter: what weights are in.
class CdnaLatents : public CdnaModels {
 protected:
  static std::unique_ptr<Engine> make(const std::string& device, int sequences, bool rounds) {
    const ModelConfig config = latent_config(std::get<1>(GetParam()));
    return Engine::create(config, Weights::generate(config, 3, 1).value(),
                          {.device = device,
                           .sequences = sequences,
                           .kv = rounds ? DType::bf16 : DType::f32,
                           .round_activations = rounds})
        .value();
  }
};

TEST_P(CdnaLatents, TokensAreTheCpus) {
  const auto cpu = make("cpu", 1, false);
  const auto gpu = make(device(), 2, false);
  const int64_t vocabulary = cpu->config().vocabulary;
  const std::vector<Engine::Prompt> prompts{test_prompt(1, vocabulary),
                                            test_prompt(21, vocabulary)};
  const auto got = gpu->generate_batch(prompts, {}, 3, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto expected = cpu->generate(prompts[i], {}, 3, {}, Eos::ignore);
    EXPECT_EQ((*got)[i].tokens, expected->tokens);
    EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)), cpu->last_logits()),
              kTolerance);
  }
}

/// By mla_decode: a chunk's rows, a step's of two sequences and, of weights in eight bits, of one.
TEST_P(CdnaLatents, InBf16LogitsAreTheCpus) {
  const auto cpu = make("cpu", 1, true);
  const auto one = make(device(), 1, true);
  const auto two = make(device(), 2, true);
  const int64_t vocabulary = cpu->config().vocabulary;
  const std::vector<Engine::Prompt> prompts{test_prompt(3, vocabulary),
                                            test_prompt(71, vocabulary)};
  const auto got = two->generate_batch(prompts, {}, 1, {}, Eos::ignore);
  ASSERT_TRUE(got.ok()) << got.error().message;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<float> expected = cpu->score(prompts[i])->last_logits;
    EXPECT_LE(relative_difference(two->last_logits(static_cast<int>(i)), expected), 3e-2);
    const auto score = one->score(prompts[i]);
    ASSERT_TRUE(score.ok()) << score.error().message;
    EXPECT_LE(relative_difference(score->last_logits, expected), 3e-2);
    const auto alone = one->generate(prompts[i], {}, 1, {}, Eos::ignore);
    ASSERT_TRUE(alone.ok()) << alone.error().message;
    EXPECT_LE(relative_difference(one->last_logits(), expected), 3e-2);
  }
}

/// One sequence: the resident kernel, where the cache and the heads' matrix are in bf16. Three
/// heads are one group, of two splits where there are keys for them; nine are two. Some weights of
/// heads are listed beside their windows.
class CdnaResidentLatents : public CdnaModels {
 protected:
  static std::unique_ptr<Engine> make(const std::string& device, int64_t heads, int workers,
                                      bool packed, bool hold_once = false) {
    ModelConfig config = latent_config(std::get<1>(GetParam()));
    config.query_heads = heads;
    Weights weights = Weights::generate(config, 3, 1).value();
    const Tensor& tensor = weights.get(Role::latent_up, 1);
    auto* bits = reinterpret_cast<uint16_t*>(const_cast<std::byte*>(tensor.data));
    for (int64_t i = 100; i < tensor.elements(); i += 701) {
      bits[i] = 0x3fc0;  // 1.5
    }
    return Engine::create(config, std::move(weights),
                          {.device = device,
                           .workers = workers,
                           .kv = DType::bf16,
                           .round_activations = false,
                           .compress_weights = packed,
                           .hold_once = hold_once})
        .value();
  }
};

/// Token by token.
TEST_P(CdnaResidentLatents, ScoresAreTheCpus) {
  const auto cpu = make("cpu", 4, 1, false);
  const auto gpu = make(device(), 4, 2, false, true);
  EXPECT_NE(gpu->saved_bytes(), 0);  // launched steps pack nothing
  const std::vector<int32_t> ids = test_prompt(4, cpu->config().vocabulary);
  const auto got = gpu->score(ids);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_LE(relative_difference(got->last_logits, cpu->score(ids)->last_logits), 3e-3);
}

TEST_P(CdnaResidentLatents, LogitsAreTheCpus) {
  for (const int64_t heads : {3, 9}) {
    const int workers = heads == 3 ? 2 : 3;
    const auto cpu = make("cpu", heads, 1, false);
    const auto gpu = make(device(), heads, workers, heads == 3);
    EXPECT_NE(gpu->saved_bytes(), 0);  // launched steps pack nothing
    for (const int64_t length : {1, 66}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, " << length << " tokens");
      SamplingOptions sampling;
      sampling.temperature = heads == 3 ? 0.9f : 0.0f;
      sampling.seed = 5;
      const std::vector<int32_t> ids = test_prompt(length, cpu->config().vocabulary);
      const auto expected = cpu->generate(ids, sampling, 3, {}, Eos::ignore);
      const auto got = gpu->generate(ids, sampling, 3, {}, Eos::ignore);
      ASSERT_TRUE(got.ok()) << got.error().message;
      EXPECT_EQ(got->tokens, expected->tokens);
      EXPECT_LE(relative_difference(gpu->last_logits(), cpu->last_logits()), 3e-3);
    }
  }
}

// The others are diff_test.cc's.
INSTANTIATE_TEST_SUITE_P(Slow, CdnaResidentLatents,
                         testing::Values(std::tuple("gfx942", "v3-bf16"),
                                         std::tuple("gfx950", "bf16")),
                         target_test_name);

INSTANTIATE_TEST_SUITE_P(Slow, CdnaLatents,
                         testing::Values(std::tuple("gfx942", "bf16"),
                                         std::tuple("gfx942", "fp8-block"),
                                         std::tuple("gfx950", "fp8-block")),
                         target_test_name);

TEST_P(CdnaDecode, RefusesWhatItHasNoFormFor) {
  const fs::path latent = kSource / "tests/goldens/models/deepseek-v2-bf16";
  ModelConfig config = read_config(latent).value();
  Weights weights = Weights::open(latent, config).value();
  const auto other = Engine::create(config, std::move(weights), {.device = device()});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("has no kernel for it; use --device cpu"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Some, CdnaDecode,
                         testing::Values(std::tuple("gfx942", "llama"),
                                         std::tuple("gfx950", "qwen3")),
                         target_test_name);

/// What takes longer.
class SlowCdnaDecode : public CdnaModels {};

/// Experts with more columns than a block has, whose slots' row is taken in one part or by a code
/// for each slot, in bf16 and in MXFP4, of no whole slices; sums of attention, with sinks, merged
/// once or by all.
TEST_P(SlowCdnaDecode, ExpertsOfAnySizeAreTheCpus) {
  const cdna::Target target =
      std::get<0>(GetParam()) == "gfx950" ? cdna::Target::gfx950 : cdna::Target::gfx942;
  struct Case {
    const char* preset;
    int64_t hidden, size, count, chosen;
    int64_t context;
    int workers;
  };
  const int64_t half_row = cdna::most_elements(target, 1) / 2;
  for (const Case& c :
       {Case{"mixtral-8x7b", 1096, 200, 5, 3, 1000, 6},
        Case{"mixtral-8x7b", 64, half_row + 8, 2, 2, 64, 2},
        Case{"gpt-oss-20b", 96, 160, 5, 3, 64, 2}, Case{"gpt-oss-20b", 224, 416, 40, 4, 1000, 6}}) {
    SCOPED_TRACE(testing::Message() << c.preset << " " << c.size);
    ModelConfig config = preset(c.preset).value();
    config.layers = 2;
    config.hidden = c.hidden;
    config.query_heads = 2;
    config.kv_heads = 1;
    config.head_dim = 32;
    config.vocabulary = 96;
    config.context = 1024;
    config.sinks = true;
    config.layer_kinds.front().window = 5;
    config.experts.size = c.size;
    config.experts.count = c.count;
    config.experts.chosen = c.chosen;
    const auto make = [&](EngineOptions options) {
      options.context = c.context;
      options.kv = DType::f32;
      options.round_activations = false;
      return Engine::create(config, Weights::generate(config, 3, 1).value(), options).value();
    };
    const auto cpu = make({.workers = 1});
    const auto gpu = make({.device = device(), .workers = c.workers, .compress_weights = true});
    const std::vector<int32_t> ids = test_prompt(4, config.vocabulary);
    const auto expected = cpu->generate(ids, {}, 4, {}, Eos::ignore);
    const auto got = gpu->generate(ids, {}, 4, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->tokens, expected->tokens);
    EXPECT_LE(relative_difference(gpu->last_logits(), cpu->last_logits()), kTolerance);
  }
}

/// In e4m3fn, whose blocks of scales end within rows and columns; steps are launched.
TEST_P(SlowCdnaDecode, ExpertsInEightBitsAreTheCpus) {
  ModelConfig config = preset("qwen3-30b-a3b").value();
  config.quantization = quantization_of("fp8-block").value();
  config.layers = 2;
  config.hidden = 136;
  config.query_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 32;
  config.vocabulary = 96;
  config.experts.size = 264;
  config.experts.count = 5;
  config.experts.chosen = 3;
  for (const bool rounds : {false, true}) {
    SCOPED_TRACE(rounds);
    const auto make = [&](EngineOptions options) {
      options.context = 64;
      options.kv = DType::f32;
      options.round_activations = rounds;
      return Engine::create(config, Weights::generate(config, 3, 1).value(), options).value();
    };
    const auto cpu = make({.workers = 1});
    const auto gpu = make({.device = device()});
    const std::vector<int32_t> ids = test_prompt(40, config.vocabulary);
    const auto expected = cpu->generate(ids, {}, 3, {}, Eos::ignore);
    const auto got = gpu->generate(ids, {}, 3, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->tokens, expected->tokens);
    EXPECT_LE(relative_difference(gpu->last_logits(), cpu->last_logits()),
              rounds ? 3e-2 : kTolerance);
  }
}

TEST_P(SlowCdnaDecode, SeveralSequencesHaveTheCpusTokens) {
  SamplingOptions sampled;
  sampled.temperature = 0.9f;
  sampled.top_p = 0.9f;
  sampled.seed = 5;
  for (const int sequences : {2, 4, 8}) {
    SCOPED_TRACE(sequences);
    compare_several(folder(), device(), 2, {.sequences = sequences, .compress_weights = true});
    compare_several(folder(), device(), 3, {.sequences = sequences}, sampled);
  }
}

/// Rows that LDS has no room for: of the FFN's result, and of eight sequences the normed ones, too.
TEST_P(SlowCdnaDecode, LongRowsHaveTheCpusTokens) {
  const cdna::Target target =
      std::get<0>(GetParam()) == "gfx950" ? cdna::Target::gfx950 : cdna::Target::gfx942;
  struct Case {
    const char* preset;
    int sequences;
    bool long_hidden;
    bool packed;
  };
  for (const Case& c :
       {Case{"llama-3.2-1b", 1, false, true}, Case{"llama-3.2-1b", 8, false, false},
        Case{"llama-3.2-1b", 8, true, true}, Case{"starcoder2-3b", 8, true, false}}) {
    SCOPED_TRACE(testing::Message() << c.preset << " " << c.sequences << " " << c.long_hidden);
    const int64_t elements = cdna::most_elements(target, c.sequences) / c.sequences + 120;
    ModelConfig config = preset(c.preset).value();
    config.layers = 1;
    config.hidden = c.long_hidden ? elements : 64;
    config.ffn = c.long_hidden ? 104 : elements;
    config.query_heads = 4;
    config.kv_heads = 2;
    config.head_dim = 32;
    config.vocabulary = 300;
    const auto make = [&](EngineOptions options) {
      options.kv = DType::f32;
      options.context = 32;
      options.round_activations = false;
      return Engine::create(config, Weights::generate(config, 3, 1).value(), options).value();
    };
    const auto cpu = make({.workers = 1});
    const auto gpu = make(
        {.device = device(), .workers = 2, .sequences = c.sequences, .compress_weights = c.packed});
    std::vector<Engine::Prompt> prompts;
    for (int i = 0; i < c.sequences; ++i) {
      prompts.push_back(test_prompt(2 + i % 2, config.vocabulary));
    }
    const auto got = gpu->generate_batch(prompts, {}, 3, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const auto expected = cpu->generate(prompts[i], {}, 3, {}, Eos::ignore);
      EXPECT_EQ((*got)[i].tokens, expected->tokens);
      EXPECT_LE(relative_difference(gpu->last_logits(static_cast<int>(i)), cpu->last_logits()),
                kTolerance);
    }
  }
}

/// More keys than one split takes.
TEST_P(SlowCdnaDecode, LongTextsAreTheCpus) { compare(folder(), device(), 4, 140, 4); }

/// As many greedy ones as WEFT_DEMO_TOKENS says and half as many sampled ones, of plain and of
/// packed weights; without it few, greedy ones of plain weights and sampled ones of packed. Two
/// workers take the least of a machine's time.
TEST_P(SlowCdnaDecode, TokensOfTheDemoModelAreTheCpus) {
  const char* const wanted = std::getenv("WEFT_DEMO_TOKENS");
  const int64_t greedy = wanted != nullptr ? std::atoi(wanted) : 8;
  ASSERT_GT(greedy, 1);
  const fs::path demo = kSource / "models/weft-code";
  for (const bool packed : {false, true}) {
    SCOPED_TRACE(packed);
    if (wanted != nullptr || !packed) {
      compare(demo, device(), 2, 9, greedy, DType::f32, {}, packed);
    }
    if (wanted != nullptr || packed) {
      compare(demo, device(), 2, 9, greedy / 2, DType::f32,
              {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .seed = 7}, packed);
    }
  }
}

/// Sequences that begin with the factors of short texts and come to those of long ones, and one
/// that begins with these.
class SlowCdnaLongRope : public CdnaModels {};

TEST_P(SlowCdnaLongRope, FactorsAreThoseOfTheLength) {
  ASSERT_EQ(read_config(folder()).value().rope_scaling.original_context, 64);
  for (const int64_t length : {4, 60, 70}) {
    SCOPED_TRACE(length);
    compare(folder(), device(), 2, length, length < 60 ? 64 : 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Some, SlowCdnaLongRope,
                         testing::Values(std::tuple("gfx942", "phi3-longrope"),
                                         std::tuple("gfx950", "phi3-longrope")),
                         target_test_name);

INSTANTIATE_TEST_SUITE_P(Some, SlowCdnaMany,
                         testing::Values(std::tuple("gfx942", "qwen2"),
                                         std::tuple("gfx950", "llama")),
                         target_test_name);

INSTANTIATE_TEST_SUITE_P(Some, SlowCdnaDecode,
                         testing::Values(std::tuple("gfx942", "llama"),
                                         std::tuple("gfx950", "qwen3")),
                         target_test_name);

}  // namespace
}  // namespace weft
