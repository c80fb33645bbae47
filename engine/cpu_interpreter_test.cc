#include "engine/cpu_interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/number.h"
#include "program/planner.h"

namespace weft {
namespace {

/// A small model of a family: queries and keys normed not at all, by head, or whole.
ModelConfig small(const char* family) {
  ModelConfig config = preset(family).value();
  config.layers = 2;
  config.hidden = 128;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_dim = 32;
  config.ffn = 192;
  config.vocabulary = 300;
  config.context = 256;
  return config;
}

/// A program that decodes a sequence of its own.
struct Decoder {
  Decoder(const ModelConfig& config, const Weights& weights, PlanOptions options, int threads)
      : sequence(CpuSequence::create(config, kCapacity, options.kv, 1).value()),
        team(threads),
        interpreter(config, weights, sequence, team) {
    options.capacity = kCapacity;
    options.attention_tasks = 6;
    loaded = interpreter.load(plan(config, weights, options)).value();
    sequence.tokens[0] = 7;
    sequence.history = {7};
  }
  std::vector<float> logits() const {
    const auto last = CpuInterpreter::logits(*loaded);
    return {last.begin(), last.end()};
  }

  static constexpr int64_t kCapacity = 256;
  CpuSequence sequence;
  WorkerTeam team;
  CpuInterpreter interpreter;
  std::shared_ptr<CpuInterpreter::Loaded> loaded;
};

/// The form that GPUs run repeats the same arithmetic in another place, so the bits are the same.
void expect_fused_bits(const ModelConfig& config, int64_t steps) {
  const Weights weights = Weights::generate(config, 3, 2).value();
  PlanOptions plain;
  plain.workers = 2;
  PlanOptions fused = plain;
  fused.workers = 3;
  fused.fuse_attention = true;
  Decoder expected(config, weights, plain, 2);
  Decoder got(config, weights, fused, 3);
  EXPECT_EQ(expected.interpreter.run(*expected.loaded, 1, steps, {}), steps);
  EXPECT_EQ(got.interpreter.run(*got.loaded, 1, steps, {}), steps);
  EXPECT_EQ(got.sequence.history, expected.sequence.history) << config.name;
  EXPECT_EQ(got.logits(), expected.logits()) << config.name;
}

// 200 steps: the step's own row lies in the first split, then in each of the others.
TEST(CpuInterpreter, FusedAttentionHasTheSameBits) {
  constexpr int64_t kSteps = 200;
  for (const char* family : {"llama-3.2-1b", "qwen3-0.6b", "olmo-2-1b"}) {
    expect_fused_bits(small(family), kSteps);
  }
}

TEST(CpuInterpreter, FusedAttentionOverLatentRowsHasTheSameBits) {
  constexpr int64_t kSteps = 150;
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  config.hidden = 72;
  config.query_heads = 3;
  config.latent = {.rank = 40, .query_rank = 28, .unturned = 24, .turned = 16, .value = 20};
  config.head_dim = 40 + 16;
  config.ffn = 56;
  config.vocabulary = 96;
  config.experts = {.count = 6, .chosen = 3, .size = 24, .shared_size = 24, .shared_whole = true};
  expect_fused_bits(config, kSteps);
}

// More workers than this machine may have cores.
TEST(CpuInterpreter, TilesThatDoNotDivideIntoStreamsHaveTheSameBits) {
  constexpr int64_t kSteps = 40;
  ModelConfig config = small("llama-3.2-1b");
  config.hidden = 256;
  config.ffn = 4100;
  config.vocabulary = 16003;
  const Weights weights = Weights::generate(config, 5, 2).value();
  PlanOptions options;
  Decoder expected(config, weights, options, 1);
  EXPECT_EQ(expected.interpreter.run(*expected.loaded, 1, kSteps, {}), kSteps);
  for (const int workers : {2, 3, 5}) {
    options.workers = workers;
    Decoder got(config, weights, options, workers);
    EXPECT_EQ(got.interpreter.run(*got.loaded, 1, kSteps, {}), kSteps);
    EXPECT_EQ(got.sequence.history, expected.sequence.history) << workers;
    EXPECT_EQ(got.logits(), expected.logits()) << workers;
  }
}

TEST(CpuInterpreter, TimesInstructionsWhenAsked) {
  const ModelConfig config = small("llama-3.2-1b");
  const Weights weights = Weights::generate(config, 3, 2).value();
  PlanOptions options;
  options.workers = 2;
  Decoder decoder(config, weights, options, 2);
  decoder.interpreter.run(*decoder.loaded, 1, 3, {});
  EXPECT_TRUE(CpuInterpreter::operation_times(*decoder.loaded).empty());
  options.capacity = Decoder::kCapacity;
  const auto timed = decoder.interpreter.load(plan(config, weights, options), true).value();
  decoder.interpreter.run(*timed, 1, 3, {});
  const auto times = CpuInterpreter::operation_times(*timed);
  const auto head = std::find_if(times.begin(), times.end(),
                                 [](const OperationTime& time) { return time.name == "head"; });
  ASSERT_NE(head, times.end());
  EXPECT_EQ(head->instructions, 2);
  EXPECT_GT(head->work, 0);
  EXPECT_GE(head->slowest, head->work);
}

// A program for more workers than the team has threads, stopped after every operation.
TEST(CpuInterpreter, RunsOperationByOperation) {
  const ModelConfig config = small("qwen3-0.6b");
  const Weights weights = Weights::generate(config, 3, 2).value();
  PlanOptions options;
  options.fuse_attention = true;
  options.workers = 3;
  Decoder expected(config, weights, options, 3);
  options.workers = 11;
  Decoder stepped(config, weights, options, 1);
  const Program program = plan(config, weights, [&] {
    options.capacity = Decoder::kCapacity;
    options.attention_tasks = 6;
    return options;
  }());
  const auto operations = static_cast<int64_t>(program.operations.size());
  for (int step = 0; step < 5; ++step) {
    expected.interpreter.run(*expected.loaded, 1, 1, {});
    for (int64_t i = 0; i < operations; ++i) {
      stepped.interpreter.run_operations(*stepped.loaded, 1, {i, i + 1});
      // Sampling, the last operation, moves the sequence on, and nothing before it does.
      EXPECT_EQ(stepped.sequence.positions[0], i + 1 == operations ? step + 1 : step);
    }
    EXPECT_EQ(stepped.sequence.history, expected.sequence.history);
    EXPECT_EQ(stepped.logits(), expected.logits());
  }
}

TEST(CpuInterpreter, ShowsBuffersAfterAnOperation) {
  const ModelConfig config = small("olmo-2-1b");
  const Weights weights = Weights::generate(config, 3, 2).value();
  PlanOptions options;
  options.workers = 3;
  options.capacity = Decoder::kCapacity;
  const Program program = plan(config, weights, options);
  Decoder decoder(config, weights, options, 1);
  // The embedding is every worker's own residual (norms after the blocks).
  ASSERT_EQ(kind_of(program.operations[1]), "embed");
  const auto& embed = std::get<EmbedOp>(program.operations[1].body);
  decoder.interpreter.run_operations(*decoder.loaded, 1, {1, 2});
  const Tensor& table = weights.get(Role::embedding, -1);
  for (size_t worker = 0; worker < 3; ++worker) {
    const auto bytes = CpuInterpreter::buffer(*decoder.loaded, embed.out, worker);
    ASSERT_EQ(bytes.size(), static_cast<size_t>(config.hidden) * sizeof(float));
    const auto* row = reinterpret_cast<const float*>(bytes.data());
    const auto* weight = reinterpret_cast<const bf16*>(table.data) + 7 * config.hidden;
    for (int64_t i = 0; i < config.hidden; ++i) {
      EXPECT_EQ(row[i], to_float(weight[i])) << "worker " << worker << ", column " << i;
    }
  }
}

}  // namespace
}  // namespace weft
