// The runner on this machine's processors: programs for decode steps and for chunks of prefill,
// laid over memory by the CPU interpreter.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/cpu_interpreter.h"
#include "engine/packed_weights.h"
#include "engine/runner.h"
#include "engine/worker_team.h"
#include "program/planner.h"

namespace weft {

class CpuRunner : public Runner {
 public:
  struct Options {
    int workers = 1;
    int64_t capacity = 0;
    DType kv = DType::bf16;
    bool round_activations = true;
    bool quantise_activations = false;  ///< see PlanOptions
    int64_t chunk = 512;
    /// Whether products read packed weights. Default: where weights are larger than the last cache,
    /// so that steps are bound by reading them, and that is found faster here when it is tried.
    std::optional<bool> compress_weights = {};
    bool profile = false;                    ///< time every instruction of decode steps
    std::function<bool()> interrupted = {};  ///< EngineOptions::interrupted
  };
  /// `config` and `weights` outlive the runner, which releases the weights that it has packed.
  /// Error (device): no memory.
  static Result<std::unique_ptr<CpuRunner>> create(const ModelConfig& config, Weights& weights,
                                                   const Options& options);

  Status begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
               const OnToken& on_token) override;
  Status decode(int64_t steps, Tokens ends, const OnToken& on_token) override;
  Result<Score> score(Tokens ids) override;
  void end(int /*sequence*/) override {}
  int sequences() const override { return 1; }
  std::span<const float> logits(int sequence) override;
  int64_t position(int sequence) const override;
  int64_t capacity() const override { return sequence_.capacity; }
  DType kv() const override { return sequence_.kv; }
  int workers() const override { return team_.size(); }
  Result<double> read_bandwidth() override;
  int64_t saved_bytes() const override { return packed_.saved_bytes(); }
  std::optional<double> compressed_time() const override { return packed_time_; }
  std::vector<OperationTime> operation_times() const override;

 private:
  using Loaded = std::shared_ptr<CpuInterpreter::Loaded>;

  CpuRunner(const ModelConfig& config, const Weights& weights, CpuSequence sequence,
            const Options& options);
  /// Makes a program when it is first needed.
  Status ensure(Loaded& program, int64_t rows, Logits logits, bool sample);
  /// Puts ids[begin, end) into the step's rows.
  void feed(std::span<const int32_t> ids, int64_t begin, int64_t end);
  /// Runs a chunk whose logits nobody wants.
  Status run_middle(int64_t rows);
  /// Log-probabilities of `next`, each given its row of logits: [next.size(), vocabulary].
  void rate(std::span<const float> logits, Tokens next, std::vector<double>& logprobs);
  /// The error of a call whose caller wants it to end.
  Status go_on() const;
  /// LongRoPE has other frequencies from one length on: when the sequence comes to it, all tokens
  /// so far but the one drawn last are fed anew, as transformers does.
  Status lengthen();

  const ModelConfig& config_;
  const Weights& weights_;
  CpuSequence sequence_;
  WorkerTeam team_;
  PackedWeights packed_;
  std::optional<double> packed_time_;  // of plain weights', where it was measured
  CpuInterpreter interpreter_;
  const int64_t chunk_;
  const std::function<bool()> interrupted_;
  const bool round_activations_, quantise_activations_, profile_;
  Loaded decode_, chunk_middle_, chunk_last_, chunk_score_;
  Loaded last_;  // the one that drew the last token
};

}  // namespace weft
