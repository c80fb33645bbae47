// The diff of the resident kernel on the simulated GPUs against the CPU: nothing of a sound model,
// and of one whose weights differ in a row on the device that row's operation, column and
// instruction.
#include "engine/diff.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "arch/device.h"
#include "engine/cdna/lower.h"
#include "engine/cdna/runner.h"
#include "engine/test_latents.h"
#include "engine/test_name.h"
#include "engine/test_prompt.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

/// Of the device's plan.
struct Shape {
  int workers = 5;
  int64_t capacity = 128;
};

fs::path folder(const std::string& model) {
  return fs::path(WEFT_SOURCE_DIR) / "tests/goldens/models" / (model + "-bf16");
}

/// A model of which the device may have other weights than the CPU.
class CdnaDiff : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const std::string device = "sim:" + std::get<0>(GetParam());
    if (const auto opened = open_device(device); !opened.ok()) {
      GTEST_SKIP() << opened.error().message;
    }
    load();
    for (const Tensor& tensor : weights_.tensors()) {
      spoiled_.emplace_back(tensor.data, tensor.data + tensor.bytes());
    }
  }

  virtual void load() {
    const fs::path from = folder(std::get<1>(GetParam()));
    config_ = read_config(from).value();
    weights_ = Weights::open(from, config_).value();
  }

  /// Another sign for `count` elements of a row that the device has.
  void spoil(Role role, int64_t layer, int64_t row, int64_t count) {
    const Tensor& tensor = weights_.get(role, layer);
    auto& bytes = spoiled_[static_cast<size_t>(&tensor - weights_.tensors().data())];
    for (int64_t i = 0; i < count; ++i) {
      bytes[static_cast<size_t>((row * tensor.columns() + i) * 2 + 1)] ^= std::byte{0x80};
    }
  }
  /// Feeds `prompt` tokens and looks at a step.
  StepDiff run(DType kv, int64_t prompt, Shape shape = {}) {
    there_ = Weights::generate(config_, 1, 1).value();
    for (size_t i = 0; i < spoiled_.size(); ++i) {
      const Tensor& tensor = there_.tensors()[i];
      EXPECT_EQ(tensor.name, weights_.tensors()[i].name);
      // Memory of this process, not of a file.
      std::memcpy(const_cast<std::byte*>(tensor.data), spoiled_[i].data(), spoiled_[i].size());
    }
    subject_ = cdna::create_subject(config_, there_,
                                    {.device = "sim:" + std::get<0>(GetParam()),
                                     .workers = shape.workers,
                                     .capacity = shape.capacity,
                                     .kv = kv})
                   .value();
    const auto differ =
        Differ::create(config_, weights_, *subject_, {.capacity = shape.capacity, .kv = kv})
            .value();
    const std::vector<int32_t> ids = test_prompt(prompt + 1, config_.vocabulary);
    const auto fed = differ->feed(std::span(ids).first(static_cast<size_t>(prompt)));
    EXPECT_TRUE(fed.ok() && !fed->has_value());
    const auto diff =
        differ->step(ids.back(), static_cast<int32_t>(subject_->program().operations.size()));
    EXPECT_TRUE(diff.ok()) << diff.error().message;
    return *diff;
  }
  const Operation& operation(const Fault& fault) const {
    return subject_->program().operations[static_cast<size_t>(fault.operation)];
  }

  ModelConfig config_;
  Weights weights_;
  std::vector<std::vector<std::byte>> spoiled_;  // [tensor]
  Weights there_;
  std::unique_ptr<Subject> subject_;
};

TEST_P(CdnaDiff, FindsNothingWhereNothingIs) {
  const StepDiff diff = run(std::get<0>(GetParam()) == "gfx942" ? DType::f32 : DType::bf16, 3);
  EXPECT_FALSE(diff.fault.has_value()) << describe(subject_->program(), *diff.fault);
  EXPECT_TRUE(diff.token.has_value());
  int64_t looked_at = 0;
  for (const auto& largest : diff.operations) {
    looked_at += largest.has_value() ? 1 : 0;
  }
  // Norms, merges and angles are made on the way to what reads them.
  EXPECT_GT(looked_at, std::ssize(diff.operations) / 2);
}

/// Where a full cache has many splits, they are merged once, and the row is handed on.
TEST_P(CdnaDiff, FindsNothingWhereSplitsAreMergedOnce) {
  const StepDiff diff = run(DType::f32, 2, {.workers = 18, .capacity = 1024});
  EXPECT_FALSE(diff.fault.has_value()) << describe(subject_->program(), *diff.fault);
  int64_t merges = 0;
  for (size_t i = 0; i < diff.operations.size(); ++i) {
    merges += subject_->program().operations[i].name == "attention_combine" &&
                      diff.operations[i].has_value()
                  ? 1
                  : 0;
  }
  // Models with many KV heads, or with work for fewer workers, have fewer splits.
  const bool many = cdna::plan_options(config_, 18, 1024, DType::f32, 1).merge_once;
  EXPECT_EQ(merges, many ? config_.layers : 0);
}

/// Attention over latent rows, of few heads and of two groups of them.
class CdnaLatentDiff : public CdnaDiff {
 protected:
  void load() override {
    config_ = latent_config(std::get<1>(GetParam()));
    config_.query_heads = std::get<0>(GetParam()) == "gfx942" ? 3 : 9;
    weights_ = Weights::generate(config_, 3, 1).value();
  }
};

TEST_P(CdnaLatentDiff, FindsNothingWhereNothingIs) {
  const StepDiff diff = run(DType::bf16, 2, {.workers = 4});
  EXPECT_FALSE(diff.fault.has_value()) << describe(subject_->program(), *diff.fault);
  EXPECT_TRUE(diff.token.has_value());
}

/// Of products with weights of their own.
class CdnaFaults : public CdnaDiff {};

TEST_P(CdnaFaults, ARowOfWeightsIsFoundDownToTheInstruction) {
  struct Planted {
    Role role;
    const char* operation;
    int64_t row;
  };
  for (const Planted& planted :
       {Planted{Role::query, "q_proj", 21}, Planted{Role::value, "v_proj", 3},
        Planted{Role::attention_out, "o_proj", 30}, Planted{Role::up, "gate_up_proj", 19},
        Planted{Role::down, "down_proj", 17}}) {
    SCOPED_TRACE(planted.operation);
    spoil(planted.role, 0, planted.row, 4);
    const StepDiff diff = run(DType::f32, 0);
    spoil(planted.role, 0, planted.row, 4);  // as it was
    ASSERT_TRUE(diff.fault.has_value());
    const Fault& fault = *diff.fault;
    EXPECT_EQ(fault.kind, Fault::Kind::differs);
    EXPECT_EQ(operation(fault).name, planted.operation);
    EXPECT_EQ(operation(fault).layer, 0);
    EXPECT_EQ(fault.element, planted.row);
    EXPECT_EQ(fault.count, 1);
    ASSERT_EQ(fault.instructions.size(), 1u);
    const InstructionPlace place = fault.instructions[0];
    const Instruction& made = subject_->program().workers[place.worker][place.index];
    EXPECT_EQ(made.operation, fault.operation);
    EXPECT_LE(made.tile.begin, planted.row);
    EXPECT_GT(made.tile.end, planted.row);
  }
}

/// Norms are made by whoever multiplies, so the product shows it.
TEST_P(CdnaFaults, AWeightOfANormIsFoundInItsProduct) {
  spoil(Role::ffn_norm, 0, 0, 40);
  const StepDiff diff = run(DType::f32, 0);
  ASSERT_TRUE(diff.fault.has_value());
  EXPECT_EQ(operation(*diff.fault).name, "gate_up_proj");
  EXPECT_GT(diff.fault->count, diff.fault->elements / 2);
}

TEST_P(CdnaFaults, ARowOfTheEmbeddingIsFound) {
  spoil(Role::embedding, -1, test_prompt(1, config_.vocabulary)[0], 2);
  const StepDiff diff = run(DType::f32, 0);
  ASSERT_TRUE(diff.fault.has_value());
  EXPECT_EQ(operation(*diff.fault).name, "embed");
  EXPECT_EQ(diff.fault->element, 0);
  EXPECT_EQ(diff.fault->count, 2);
}

INSTANTIATE_TEST_SUITE_P(Some, CdnaDiff,
                         testing::Values(std::tuple("gfx942", "llama"),
                                         std::tuple("gfx950", "olmo2")),
                         target_test_name);
INSTANTIATE_TEST_SUITE_P(Slow, CdnaLatentDiff,
                         testing::Values(std::tuple("gfx942", "bf16"),
                                         std::tuple("gfx950", "v3-bf16")),
                         target_test_name);
INSTANTIATE_TEST_SUITE_P(Some, CdnaFaults,
                         testing::Values(std::tuple("gfx942", "qwen3"),
                                         std::tuple("gfx950", "llama")),
                         target_test_name);
INSTANTIATE_TEST_SUITE_P(
    Slow, CdnaDiff,
    testing::Combine(testing::Values("gfx942", "gfx950"),
                     testing::Values("gemma2", "gemma3", "granite", "instella", "llama3", "mistral",
                                     "mixtral", "phi3", "phi3-longrope", "qwen2", "qwen2-moe",
                                     "qwen2-yarn", "qwen3", "smollm3", "starcoder2")),
    target_test_name);

}  // namespace
}  // namespace weft
