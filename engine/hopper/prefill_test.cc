// Chunks of a prompt on a GPU against the CPU interpreter: tiny models of every family.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "arch/device.h"
#include "base/relative_difference.h"
#include "engine/engine.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {
namespace {

const std::filesystem::path kModels =
    std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models";

std::unique_ptr<Engine> make_engine(const std::string& model, const std::string& device, DType kv,
                                    bool round_activations) {
  ModelConfig config = read_config(kModels / model).value();
  Weights weights = Weights::open(kModels / model, config).value();
  EngineOptions options;
  options.device = device;
  options.kv = kv;
  options.round_activations = round_activations;
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

TEST(Prefill, LogitsAreTheCpus) {
  if (const auto device = open_device("cuda"); !device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    const std::string model = entry.path().filename().string();
    if (!model.ends_with("-bf16") && model.find("-fp8-") == std::string::npos) {
      continue;
    }
    for (const auto& [kv, round_activations, scored, drawn] : kFormats) {
      SCOPED_TRACE(model + ", KV cache " + std::string(name_of(kv)) + ", activations " +
                   (round_activations ? "bf16" : "f32"));
      const auto cpu = make_engine(model, "cpu", kv, round_activations);
      const auto gpu = make_engine(model, "cuda", kv, round_activations);
      for (const int64_t length : {1, 2, 17, 129, 600}) {
        const std::vector<int32_t> ids = test_prompt(length, cpu->config().vocabulary);
        const Score expected = cpu->score(ids).value();
        EXPECT_LE(relative_difference(gpu->score(ids).value().last_logits, expected.last_logits),
                  scored)
            << length << " tokens scored";
        const auto generation = gpu->generate(ids, {}, 1);
        ASSERT_TRUE(generation.ok()) << length << " tokens: " << generation.error().message;
        EXPECT_LE(relative_difference(gpu->last_logits(), expected.last_logits), drawn)
            << length << " tokens of a prompt";
      }
    }
  }
}

}  // namespace
}  // namespace weft
