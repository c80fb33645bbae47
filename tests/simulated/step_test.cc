// A step of the resident kernel as the simulated GPUs count it: bytes of memory over the least that
// a step has to move, and bits that the order of waves has no part in.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "arch/cdna/target.h"
#include "arch/device.h"
#include "engine/cdna/runner.h"
#include "engine/engine.h"
#include "engine/test_latents.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/weights.h"
#include "sim/hip.h"

namespace weft::cdna {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = WEFT_SOURCE_DIR;

class CdnaStep : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (const auto opened = open_device(device()); !opened.ok()) {
      GTEST_SKIP() << opened.error().message;
    }
  }
  void TearDown() override { sim::set_seed(0); }
  static std::string device() { return "sim:" + std::string(name_of(GetParam())); }
};

/// Of all weights but the embedding table, where it is not the head, each byte; a row of the table;
/// keys and values.
double least_bytes(const ModelConfig& config, const Weights& weights, int64_t position, DType kv) {
  const auto row = static_cast<double>(config.hidden * 2);
  const auto table = static_cast<double>(weights.get(Role::embedding).bytes());
  const auto cache = static_cast<double>(2 * config.layers * config.kv_size() * (position + 1)) *
                     static_cast<double>(size_of(kv));
  return static_cast<double>(weights.bytes()) - (config.tied_head ? 0 : table) + row + cache;
}

/// Bytes to and from memory in a step over the least.
double bytes_over_least(const ModelConfig& config, const Weights& weights, int workers,
                        const std::string& device) {
  constexpr int64_t kPosition = 2;
  const auto subject = create_subject(
      config, weights, {.device = device, .workers = workers, .capacity = 64, .kv = DType::bf16});
  EXPECT_TRUE(subject.ok()) << subject.error().message;
  const auto operations = static_cast<int32_t>((*subject)->program().operations.size());
  for (int64_t position = 0; position <= kPosition; ++position) {
    const bool last = position == kPosition;
    const auto ran = (*subject)->run(3, position, last ? operations : operations - 3);
    EXPECT_TRUE(ran.ok()) << ran.error().message;
  }
  const sim::Counters& counters = sim::last_launch().counters;
  const double bytes = static_cast<double>(counters.hbm_bytes_read + counters.hbm_bytes_written);
  return bytes / least_bytes(config, weights, kPosition, DType::bf16);
}

TEST_P(CdnaStep, MovesTheLeastBytesOfMemory) {
  const fs::path folder = kSource / "models/weft-code";
  const ModelConfig config = read_config(folder).value();
  const Weights weights = Weights::open(folder, config).value();
  const double over = bytes_over_least(config, weights, 16, device());
  EXPECT_GE(over, 1);
  EXPECT_LE(over, 1.05);
}

class SlowCdnaStep : public CdnaStep {};

/// A layer of a public size on all compute units.
TEST_P(SlowCdnaStep, MovesTheLeastBytesOfMemoryOnAllUnits) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  const Weights weights = Weights::generate(config, 1, 1).value();
  const double over = bytes_over_least(config, weights, 0, device());
  // Its weights are packed, in three quarters of their bytes.
  EXPECT_GE(over, 0.75);
  EXPECT_LE(over, 0.75 * 1.05);
}

/// Seeds run waves in random orders, with caches that keep old copies until they are told
/// otherwise. make(): the weights.
void expect_same_bits(const ModelConfig& config, const std::function<Weights()>& make,
                      const std::string& device, std::initializer_list<uint64_t> seeds,
                      int64_t prompt) {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  for (const uint64_t seed : seeds) {
    sim::set_seed(seed);
    const auto engine = Engine::create(
        config, make(), {.device = device, .workers = 5, .context = 96, .kv = DType::bf16});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    const auto got =
        (*engine)->generate(test_prompt(prompt, config.vocabulary), {}, 2, {}, Eos::ignore);
    ASSERT_TRUE(got.ok()) << got.error().message;
    const std::span<const float> last = (*engine)->last_logits();
    if (seed == 0) {
      tokens = got->tokens;
      logits.assign(last.begin(), last.end());
      continue;
    }
    EXPECT_EQ(got->tokens, tokens) << seed;
    EXPECT_TRUE(std::equal(last.begin(), last.end(), logits.begin(), logits.end())) << seed;
  }
  EXPECT_EQ(std::ssize(logits), config.vocabulary);
}

TEST_P(CdnaStep, HasTheSameBitsInAnyOrder) {
  const fs::path folder = kSource / "tests/goldens/models/qwen3-bf16";
  const ModelConfig config = read_config(folder).value();
  expect_same_bits(
      config, [&] { return Weights::open(folder, config).value(); }, device(), {0, 1, 1000}, 3);
}

/// Two groups of heads, of two splits of the keys each.
TEST_P(SlowCdnaStep, OverLatentRowsHasTheSameBitsInAnyOrder) {
  ModelConfig config = latent_config("v3-bf16");
  config.query_heads = 9;
  expect_same_bits(
      config, [&] { return Weights::generate(config, 3, 1).value(); }, device(), {0, 7}, 66);
}

std::string target_name(const testing::TestParamInfo<Target>& info) {
  return std::string(name_of(info.param));
}
INSTANTIATE_TEST_SUITE_P(Some, CdnaStep, testing::ValuesIn(kTargets), target_name);
INSTANTIATE_TEST_SUITE_P(Some, SlowCdnaStep, testing::ValuesIn(kTargets), target_name);

}  // namespace
}  // namespace weft::cdna
