// The runner on an AMD GPU or its simulator: the decode program, lowered to codes, runs as one
// resident kernel, or, where that has no form for the model, step by step as chunks of a row a
// sequence. Prompts are fed by chunks (engine/prefill/).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/prefill/prefill.h"
#include "engine/runner.h"
#include "engine/subject.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft::cdna {

/// Sequences that are decoded at once, more than resident::kMostSequences by launched steps.
inline constexpr int kMostAtOnce = kMostStepRows;

struct RunnerOptions {
  std::string device;    ///< "hip", "hip:1", "sim:gfx942"
  int workers = 0;       ///< workgroups; 0: one for each compute unit
  int64_t capacity = 0;  ///< positions of a sequence
  int sequences = 1;     ///< at most kMostAtOnce
  DType kv = DType::bf16;
  bool round_activations = true;  ///< in a chunk of a prompt, see PlanOptions
  /// In 12 bits (ops/linear/forms/packed/windowed.h); default: when they do not fit the last cache.
  std::optional<bool> compress_weights = {};
  /// Whether packed weights are held alone: prompts go token by token then. Default: where the
  /// device has no room for both.
  std::optional<bool> hold_once = {};
};

/// `config` and `weights` outlive the runner; all weights have data. Errors: device (no such GPU,
/// no memory), input (a model that the kernel has no form for). Of a simulator, whatever its
/// sanitizers find ends the call that ran it.
Result<std::unique_ptr<Runner>> create_runner(const ModelConfig& config, const Weights& weights,
                                              const RunnerOptions& options);

/// The same on the same terms, to be held against the CPU interpreter.
Result<std::unique_ptr<Subject>> create_subject(const ModelConfig& config, const Weights& weights,
                                                const RunnerOptions& options);

}  // namespace weft::cdna
