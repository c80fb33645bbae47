// BatchRunner on the CPU: a chunk program for prompts, and one decode program of several sequences
// whose weights are read once for all rows of a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/batch_runner.h"
#include "engine/cpu_interpreter.h"
#include "engine/packed_weights.h"
#include "engine/worker_team.h"
#include "model/config.h"
#include "model/weights.h"

namespace weft {

class CpuBatchRunner : public BatchRunner {
 public:
  struct Options {
    int workers = 1;
    int64_t capacity = 0;  ///< positions of a sequence at most
    int64_t pages = 0;     ///< that can be used: 1 to `pages`
    DType kv = DType::bf16;
    bool round_activations = false;
    bool quantise_activations = false;
    int64_t most_fed = 512;
    std::optional<bool> compress_weights = {};
    bool exact = true;  ///< a prompt's rows have the same bits however it is cut
  };
  /// Rows of a step: more would be computed by another kernel, with other bits (ops/linear/op.h).
  static constexpr int64_t kRows = 8;
  /// Fewer rows of a prompt take as long as these: reading the weights, and waits between
  /// operations.
  static constexpr int64_t kLeastFed = 32;

  /// `config` and `weights` outlive the runner, which releases the weights that it has packed.
  /// Error (device): no memory.
  static Result<std::unique_ptr<CpuBatchRunner>> create(const ModelConfig& config, Weights& weights,
                                                        const Options& options);

  Status feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) override;
  Result<std::span<float>> step(std::span<const StepRow> rows) override;
  Status copy_page(int32_t from, int32_t to) override;
  int64_t most_fed() const override { return most_fed_; }
  int64_t rows_fed(int64_t tokens) const override { return std::max(kLeastFed, tokens); }
  int64_t most_rows() const override { return kRows; }
  int cpu_workers() const override { return team_.size(); }

 private:
  CpuBatchRunner(const ModelConfig& config, const Weights& weights, CpuSequence sequences,
                 const Options& options);
  Status load(const Weights& weights, const Options& options);

  const ModelConfig& config_;
  CpuSequence sequences_;
  WorkerTeam team_;
  PackedWeights packed_;
  CpuInterpreter interpreter_;
  const int64_t most_fed_;
  std::shared_ptr<CpuInterpreter::Loaded> chunk_, decode_;
  BufferId logits_ = kNone;  // of decode_
};

}  // namespace weft
