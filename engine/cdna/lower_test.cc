#include "engine/cdna/lower.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/number.h"
#include "engine/cdna/layout.h"
#include "program/verify.h"

namespace weft::cdna {
namespace {

using resident::Code;
using resident::NextToken;

constexpr int64_t kCapacity = 1024;
constexpr NextToken kAll[] = {NextToken::best, NextToken::sampled, NextToken::forced};

struct Made {
  ModelConfig config;
  Weights weights;
  Program program;
  Result<Lowered> lowered;
};

Made make(ModelConfig config, int workers, Target target, Weights weights) {
  const Program program =
      plan(config, weights, plan_options(config, workers, kCapacity, DType::bf16));
  EXPECT_TRUE(verify(program).ok());
  auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity, target);
  return {std::move(config), std::move(weights), program, std::move(lowered)};
}
/// A preset's first two layers.
Made make(const std::string& name, Target target = Target::gfx942, int workers = 0) {
  ModelConfig config = preset(name).value();
  config.layers = 2;
  Weights weights = Weights::describe(config);
  return make(std::move(config), workers > 0 ? workers : limits_of(target).compute_units, target,
              std::move(weights));
}

/// With few workers: what the verifier keeps of each of them, and does, grows with their square.
TEST(CdnaLower, EveryPresetIsSoundOrRefused) {
  int sound = 0;
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    const Made made = make(name, Target::gfx950, 20);
    if (!made.lowered.ok()) {
      EXPECT_GT(made.config.experts.count, 0) << made.lowered.error().message;
      EXPECT_NE(made.lowered.error().message.find("has no kernel for it"), std::string::npos)
          << made.lowered.error().message;
      continue;
    }
    ++sound;
    const Status status = verify_codes(*made.lowered, made.program, NextToken::best, kCapacity - 2);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  EXPECT_GT(sound, 15);
}

TEST(CdnaLower, WholeDevicesAreSound) {
  for (const Target target : kTargets) {
    const Made made = make("qwen3-0.6b", target);
    ASSERT_TRUE(made.lowered.ok());
    for (const NextToken next : kAll) {
      const Status status = verify_codes(*made.lowered, made.program, next, kCapacity - 2);
      EXPECT_TRUE(status.ok()) << status.error().message;
    }
  }
}

TEST(CdnaLower, RefusesRowsThatItHasNoRoomFor) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.ffn = most_k(Target::gfx942) + 16;
  EXPECT_TRUE(make(config, 8, Target::gfx950, Weights::describe(config)).lowered.ok());
  const Made made = make(config, 8, Target::gfx942, Weights::describe(config));
  ASSERT_FALSE(made.lowered.ok());
  EXPECT_NE(made.lowered.error().message.find("the gfx942 device has room for 14336"),
            std::string::npos);
}

TEST(CdnaLower, FewWorkersAndFewKeysAreSound) {
  for (const char* name : {"gemma-2-2b", "olmo-2-1b", "llama-3.2-1b"}) {
    for (const int workers : {1, 3, 16}) {
      const Made made = make(name, Target::gfx942, workers);
      ASSERT_TRUE(made.lowered.ok());
      for (const int64_t position : {0, 127, 200}) {
        const Status status = verify_codes(*made.lowered, made.program, NextToken::best, position);
        EXPECT_TRUE(status.ok()) << status.error().message;
      }
    }
  }
}

/// What a step reads of the weights is what there is of them, but for units that are not whole.
TEST(CdnaLower, StreamsHaveTheWeightsOnce) {
  for (const char* name : {"llama-3.1-8b", "qwen3-0.6b", "weft-2b"}) {
    const Made made = make(name);
    ASSERT_TRUE(made.lowered.ok());
    EXPECT_LE(static_cast<double>(made.lowered->packed_bytes),
              1.01 * static_cast<double>(made.lowered->plain_bytes))
        << name;
    EXPECT_GE(made.lowered->packed_bytes, made.lowered->plain_bytes);
  }
}

/// Reads products' weights back from the stream as the kernel does.
TEST(CdnaLower, PackedWeightsAreTheModels) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.hidden = 72;  // no multiple of a slice
  config.ffn = 88;     // nor of a unit
  config.query_heads = config.kv_heads = 3;
  config.head_dim = 24;
  config.vocabulary = 50;
  Weights weights = Weights::generate(config, 3, 1).value();
  const Made made = make(config, 3, Target::gfx950, std::move(weights));
  ASSERT_TRUE(made.lowered.ok()) << made.lowered.error().message;
  const Lowered& lowered = *made.lowered;
  std::vector<std::byte> packed(static_cast<size_t>(lowered.packed_bytes), std::byte{0xff});
  pack(lowered, packed);
  const auto packed_at = [&](size_t worker, const Code& code, int unit, int row, int k) {
    const int64_t at = lowered.streams[worker] + int64_t{code.product.stream} * 16 +
                       (int64_t{unit} * slices_of(code.product.k) + k / kSliceK) * kSliceBytes +
                       (k % kSliceK / 8 * kUnitColumns + row) * 16 + k % 8 * 2;
    uint16_t bits = 0;
    std::memcpy(&bits, packed.data() + at, 2);
    return bits;
  };
  const auto weight_at = [](const Tensor& tensor, int64_t row, int64_t k) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.data + (row * tensor.columns() + k) * 2, 2);
    return bits;
  };
  int gated = 0;
  int heads = 0;
  for (size_t worker = 0; worker < lowered.codes.size(); ++worker) {
    for (const Code& code : lowered.codes[worker]) {
      const resident::ProductCode& product = code.product;
      const auto columns = static_cast<int>(product.segment[0].columns);
      if (code.opcode == resident::Opcode::gated_linear) {
        ++gated;
        for (int c = 0; c < columns; ++c) {
          for (int k = 0; k < product.k; ++k) {
            ASSERT_EQ(packed_at(worker, code, c / 8, c % 8, k),
                      weight_at(made.weights.get(Role::gate, 0), product.first + c, k));
            ASSERT_EQ(packed_at(worker, code, c / 8, 8 + c % 8, k),
                      weight_at(made.weights.get(Role::up, 0), product.first + c, k));
          }
        }
      } else if (code.opcode == resident::Opcode::linear && code.head != 0) {
        ++heads;
        const Role role = made.config.tied_head ? Role::embedding : Role::head;
        for (int c = 0; c < columns; ++c) {
          for (int k = 0; k < slices_of(product.k) * kSliceK; ++k) {
            ASSERT_EQ(packed_at(worker, code, c / 16, c % 16, k),
                      k < product.k ? weight_at(made.weights.get(role), product.first + c, k) : 0);
          }
        }
      }
    }
  }
  EXPECT_GT(gated, 0);
  EXPECT_GT(heads, 0);
}

TEST(CdnaLower, RefusesSeveralSequences) {
  const ModelConfig config = preset("llama-3.2-1b").value();
  const Weights weights = Weights::describe(config);
  PlanOptions options = plan_options(config, 8, kCapacity, DType::bf16);
  options.sequences = 2;
  const Program program = plan(config, weights, options);
  const auto lowered =
      lower(program, config, weights, lay_out(program, weights), kCapacity, Target::gfx942);
  ASSERT_FALSE(lowered.ok());
  EXPECT_NE(lowered.error().message.find("one sequence at a time, not 2"), std::string::npos);
}

/// Dealing leaves out nothing, and nobody has two more than another.
TEST(CdnaLayout, RunsAreEven) {
  for (int slices = 0; slices < 100; ++slices) {
    const Runs runs(slices);
    EXPECT_EQ(runs.first(0), 0);
    EXPECT_EQ(runs.first(kTeamWaves), slices);
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      EXPECT_EQ(runs.first(wave) + runs.count(wave), runs.first(wave + 1));
      EXPECT_LE(runs.count(0) - runs.count(wave), 1);
    }
  }
}

}  // namespace
}  // namespace weft::cdna
