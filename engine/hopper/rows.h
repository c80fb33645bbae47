// Rows of steps, each moved by itself: what sequences that come and go need of the device
// (batch_runner.h). Up to eight are the resident kernel's; more are steps of launched kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "arch/device.h"
#include "engine/hopper/runner.h"
#include "engine/prefill/prefill.h"

namespace weft::hopper {

/// A row of a launch.
struct RowStep {
  int64_t position = 0;  ///< of its first step; of a row that is not live, what the caches hold
                         ///< from there on is overwritten
  int32_t token = 0;     ///< that the first step feeds
  bool live = false;
};

/// A row of a step of launched kernels.
struct FedRow {
  int32_t token = 0;
  int32_t position = 0;
  int32_t sequence = 0;  ///< a row's
};

/// Tokens of a prompt at positions `first` onward.
struct FedChunk {
  std::span<const int32_t> tokens;
  int64_t first = 0;
  int32_t sequence = 0;
};

class Rows {
 public:
  virtual ~Rows() = default;

  /// Feeds tokens of prompts, RunnerOptions::fed in all. Launches and returns.
  virtual Status feed(std::span<const FedChunk> chunks) = 0;
  /// Runs steps: on_token gets each token that has the best logit as it is drawn, and says whether
  /// the row is to go on. `rows`: [sequences].
  virtual Status run_rows(std::span<const RowStep> rows, int64_t steps,
                          const Runner::OnToken& on_token) = 0;
  /// Copies a live row's logits of the last step [vocabulary]; launches and returns. `to`: pinned.
  virtual Status copy_logits(int row, float* to) = 0;
  /// Feeds tokens in one step of launched kernels, those of one sequence in order (1 to
  /// most_launched(); 0: there is none), and tokens of prompts in the same launches, as feed()
  /// does; a row may follow its own prompt. Returns what has the best logit after each row, until
  /// the next call.
  virtual Result<std::span<const int32_t>> launch(std::span<const FedRow> rows,
                                                  std::span<const FedChunk> chunks) = 0;
  virtual int64_t most_launched() const = 0;
  /// Whether a row's bits are those of run_rows(), whatever is fed by the same launch().
  virtual bool launches_alike() const = 0;
  /// Copies logits after rows[index] of the last launch(); launches and returns. `to`: pinned.
  virtual Status copy_launched_logits(size_t index, float* to) = 0;
  /// In the order of the program's buffers: [sequences][kv_heads][capacity][head_dim] each.
  virtual std::vector<char*> caches() const = 0;
  virtual Device& device() = 0;
};

/// Of the resident kernel, or launched where that does not take the model. Errors: as
/// create_runner(), and input where prompts cannot be fed by chunks.
Result<std::unique_ptr<Rows>> create_rows(const ModelConfig& config, const Weights& weights,
                                          const RunnerOptions& options);
/// Of launched kernels, as those of prompts: any number up to kMostStepRows. A step is always of as
/// many rows, so that a row's bits do not depend on how many are live.
Result<std::unique_ptr<Rows>> create_launched_rows(const ModelConfig& config,
                                                   const Weights& weights,
                                                   const RunnerOptions& options);

/// The weights, as the checkpoint has them or made from the seed, to arena + places[tensor], but
/// for those whose place is kNowhere, and the scales of those that are codes.
Status put_weights(const ModelConfig& config, const Weights& weights, uint64_t seed, char* arena,
                   std::span<const int64_t> places, std::span<const int64_t> scale_places,
                   Device& device);
/// Weights in eight bits on `device`, as products of prompts take them.
PrefillPlaces::Widen widen_on(Device& device);

}  // namespace weft::hopper
