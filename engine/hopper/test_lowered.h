// For tests: presets, planned and lowered.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/hopper/lower.h"

namespace weft::hopper {

/// Those without experts.
inline std::vector<std::string> lowered_presets() {
  std::vector<std::string> names = preset_names();
  std::erase_if(names, [](const std::string& name) { return preset(name)->experts.count > 0; });
  return names;
}
inline std::vector<std::string> mixtures() {
  std::vector<std::string> names = preset_names();
  std::erase_if(names, [](const std::string& name) { return preset(name)->experts.count == 0; });
  return names;
}

inline constexpr int kSms = 132;
inline constexpr int64_t kCapacity = 1024;

struct Made {
  ModelConfig config;
  Weights weights;
  Program program;
  Arena arena;
  Lowered lowered;
};

/// Lowers `made.program` as it is now.
inline void lower_again(Made& made, bool plain = false) {
  made.arena = lay_out(made.program, made.weights);
  auto lowered = lower(made.program, made.config, made.weights, made.arena, kCapacity,
                       std::vector<bool>(made.program.operations.size(), plain));
  EXPECT_TRUE(lowered.ok()) << made.config.name << ": "
                            << (lowered.ok() ? "" : lowered.error().message);
  if (lowered.ok()) {
    made.lowered = std::move(*lowered);
  }
}

/// A model, planned for `sequences` and lowered. Its weights are those of `config` alone.
inline Made make(const ModelConfig& config, int64_t sequences, bool plain = false,
                 int workers = 0) {
  Made made;
  made.config = config;
  made.weights = Weights::describe(made.config);
  PlanOptions options = plan_options(made.config, kSms, kCapacity, DType::bf16, sequences);
  if (workers > 0) {
    options.workers = options.attention_tasks = workers;
  }
  made.program = plan(made.config, made.weights, options);
  lower_again(made, plain);
  return made;
}

/// A preset of few layers.
inline Made make(const std::string& name, int64_t sequences = 1, bool plain = false,
                 int64_t layers = 2) {
  ModelConfig config = preset(name).value();
  config.layers = layers;
  return make(config, sequences, plain);
}

}  // namespace weft::hopper
