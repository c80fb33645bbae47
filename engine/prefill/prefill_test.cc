// Chunks of a prompt on a GPU against the CPU interpreter: tiny models of every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "arch/device.h"
#include "base/relative_difference.h"
#include "engine/engine.h"
#include "engine/test_name.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {
namespace {

const std::filesystem::path kTinyModels =
    std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models";

std::unique_ptr<Engine> make_engine(const std::string& model, const std::string& device, DType kv,
                                    bool round_activations) {
  ModelConfig config = read_config(kTinyModels / model).value();
  Weights weights = Weights::open(kTinyModels / model, config).value();
  EngineOptions options;
  options.device = device;
  options.kv = kv;
  options.round_activations = round_activations;
  options.workers = device.starts_with("sim:") ? 3 : 0;  // a simulated one costs more
  return Engine::create(std::move(config), std::move(weights), options).value();
}

/// Both round the same numbers to bf16, but sum in other orders: what a difference of a last bit
/// before a rounding becomes, which is as much as the rounding itself (see Goldens). Where nothing
/// is rounded, scores are sums of f32 in another order; the resident kernel, which takes a prompt's
/// last token, keeps 17 bits of its rows.
struct Formats {
  DType kv;
  bool round_activations;
  double scored;
  double drawn;
};
constexpr Formats kFormats[] = {{DType::bf16, true, 1e-2, 1e-2},
                                {DType::f32, true, 1e-2, 1e-2},
                                {DType::bf16, false, 4e-3, 4e-3},
                                {DType::f32, false, 5e-6, 2e-4}};
/// In bf16 a near tie of a router's logits may fall the other way, and another expert differs by
/// more than a rounding does.
constexpr Formats kOfMixtures[] = {
    {DType::bf16, true, 3e-2, 3e-2}, {DType::f32, true, 3e-2, 3e-2}, kFormats[2], kFormats[3]};

void compare(const std::string& model, const std::string& device,
             std::initializer_list<int64_t> lengths, std::span<const Formats> formats = kFormats) {
  for (const auto& [kv, round_activations, scored, drawn] : formats) {
    SCOPED_TRACE(model + ", KV cache " + std::string(name_of(kv)) + ", activations " +
                 (round_activations ? "bf16" : "f32"));
    const auto cpu = make_engine(model, "cpu", kv, round_activations);
    const auto gpu = make_engine(model, device, kv, round_activations);
    for (const int64_t length : lengths) {
      const std::vector<int32_t> ids = test_prompt(length, cpu->config().vocabulary);
      const Score expected = cpu->score(ids).value();
      const Result<Score> got = gpu->score(ids);
      ASSERT_TRUE(got.ok()) << length << " tokens: " << got.error().message;
      EXPECT_LE(relative_difference(got->last_logits, expected.last_logits), scored)
          << length << " tokens scored";
      // A logit and the sum of all each differ as much; other rows' may be twice as large.
      const double largest =
          std::ranges::max(expected.last_logits, {}, [](float logit) { return std::fabs(logit); });
      const double most = 4 * scored * std::fabs(largest);
      ASSERT_EQ(got->logprobs.size(), expected.logprobs.size());
      for (size_t i = 0; i < got->logprobs.size(); ++i) {
        EXPECT_NEAR(got->logprobs[i], expected.logprobs[i], most) << "token " << i;
      }
      const auto generation = gpu->generate(ids, {}, 1);
      ASSERT_TRUE(generation.ok()) << length << " tokens: " << generation.error().message;
      EXPECT_LE(relative_difference(gpu->last_logits(), expected.last_logits), drawn)
          << length << " tokens of a prompt";
    }
  }
}

TEST(Prefill, LogitsAreTheCpus) {
  if (const auto device = open_device("cuda"); !device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  for (const auto& entry : std::filesystem::directory_iterator(kTinyModels)) {
    const std::string model = entry.path().filename().string();
    const bool wanted = model.ends_with("-bf16") || model.find("-fp8") != std::string::npos ||
                        model == "gpt-oss-mxfp4";
    if (wanted && model != "deepseek-v2-bf16" && model != "deepseek-v3-bf16") {  // odd ranks
      const bool mixture = read_config(entry.path()).value().experts.count > 0;
      compare(model, "cuda", {1, 2, 17, 129, 600},
              mixture ? std::span<const Formats>(kOfMixtures) : kFormats);
    }
  }
}

/// The same on simulated AMD GPUs, where whatever the sanitizers find is an error.
class CdnaPrefill : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(CdnaPrefill, LogitsAreTheCpus) {
  const auto& [target, model] = GetParam();
  if (const auto device = open_device("sim:" + target); !device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  // What goes with what is no target's affair: one has all of it.
  constexpr Formats kSome[] = {kFormats[0], kFormats[3]};
  compare(model + "-bf16", "sim:" + target, {1, 17, 70},
          target == "gfx942" ? std::span<const Formats>(kFormats) : kSome);
}

/// Mixtures of experts, and weights in eight bits.
class CdnaPrefillOf : public CdnaPrefill {};

TEST_P(CdnaPrefillOf, LogitsAreTheCpus) {
  const auto& [target, model] = GetParam();
  if (const auto device = open_device("sim:" + target); !device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  constexpr Formats kOf[] = {kOfMixtures[0], kOfMixtures[3]};
  compare(model, "sim:" + target, {1, 17, 70}, kOf);
}

INSTANTIATE_TEST_SUITE_P(Some, CdnaPrefill,
                         testing::Values(std::tuple("gfx942", "gemma3"),
                                         std::tuple("gfx950", "qwen2")),
                         target_test_name);

INSTANTIATE_TEST_SUITE_P(
    Slow, CdnaPrefill,
    testing::Combine(testing::Values("gfx942", "gfx950"),
                     testing::Values("llama", "gemma2", "gemma3", "granite", "instella", "llama3",
                                     "mistral", "olmo2", "phi3", "phi3-longrope", "qwen2",
                                     "qwen2-yarn", "qwen3", "smollm3", "starcoder2")),
    target_test_name);

INSTANTIATE_TEST_SUITE_P(Slow, CdnaPrefillOf,
                         testing::Combine(testing::Values("gfx942", "gfx950"),
                                          testing::Values("mixtral-bf16", "olmoe-bf16",
                                                          "qwen2-moe-bf16", "qwen3-moe-bf16",
                                                          "gpt-oss-mxfp4", "llama-fp8-block",
                                                          "llama-fp8-row", "llama-fp8-channel",
                                                          "llama-fp8-tensor", "deepseek-v3-fp8")),
                         target_test_name);

}  // namespace
}  // namespace weft
