// The runner on an NVIDIA Hopper GPU: the decode program, lowered to codes, runs as one resident
// kernel.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "arch/device.h"
#include "engine/runner.h"
#include "engine/subject.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft::hopper {

struct RunnerOptions {
  std::string device;    ///< "cuda", "cuda:1"
  int workers = 0;       ///< CTAs; 0: one for each SM
  int64_t capacity = 0;  ///< positions of a sequence
  int sequences = 1;     ///< at most kMostSequences
  DType kv = DType::bf16;
  bool round_activations = true;  ///< prompts may be fed by chunks that round them to bf16
  /// For the resident kernel (ops/linear/forms/packed/windowed.h); default: when they do not fit
  /// L2.
  std::optional<bool> compress_weights = {};
  /// Whether packed weights are held alone, and unpacked for prompts. Default: where the device has
  /// no room for both.
  std::optional<bool> hold_once = {};
  uint64_t weights_seed = 0;  ///< of weights with no data
  // Of Rows:
  int64_t fed = 0;       ///< tokens of prompts that are fed at once, at most
  bool exact = false;    ///< a row's bits do not depend on what is fed or stepped with it
  bool profile = false;  ///< time every operation
};

/// `config` and `weights` outlive the runner. Weights with data are uploaded; those without
/// (Weights::describe) are made on the device from the seed. Errors: device (no such GPU, no
/// memory), input (a model that the kernel has no form for).
Result<std::unique_ptr<Runner>> create_runner(const ModelConfig& config, const Weights& weights,
                                              const RunnerOptions& options);

/// Whether weights are packed: as the caller wishes, or where they do not fit L2.
bool compresses(const RunnerOptions& options, const Weights& weights, const DeviceInfo& device);
/// Bytes that tiles of such weights (Prefill::create) may take: a part of what is free on the
/// calling thread's device when all else but pages has its place.
Result<int64_t> room_for_tiles(const RunnerOptions& options, const Weights& weights,
                               const DeviceInfo& device);

/// The same on the same terms, to be held against the CPU interpreter.
Result<std::unique_ptr<Subject>> create_subject(const ModelConfig& config, const Weights& weights,
                                                const RunnerOptions& options);

}  // namespace weft::hopper
