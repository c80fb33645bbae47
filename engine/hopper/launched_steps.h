// Decode steps of launched kernels (Prefill::step), for models and numbers of sequences that the
// resident kernel does not take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "arch/device.h"
#include "arch/hopper/handle.h"
#include "engine/hopper/rows.h"
#include "engine/prefill/prefill.h"

namespace weft::hopper {

class LaunchedSteps {
 public:
  /// Gets each token of a live row as it is drawn; false: draw no more for it.
  using OnToken = std::function<bool(size_t row, int32_t token)>;
  using Row = FedRow;

  /// At most `rows` of a step or of what is fed at once, or of both together. `prefill` and
  /// `device` outlive it.
  Status create(Prefill& prefill, Device& device, int64_t vocabulary, int64_t rows);
  /// Runs up to `steps`, until no live row, of which there are the first `live`, wants more: each
  /// next token is the one with the best logit. The others are stepped with them: a row's bits
  /// depend on how many there are, not on how many are live. `fed` are in the launches of the first
  /// step.
  Status run(std::span<const Row> rows, size_t live, int64_t steps, const OnToken& on_token,
             std::span<const FedChunk> fed = {});
  /// One step. Returns what has the best logit after each live row, until the next call.
  Result<std::span<const int32_t>> step(std::span<const Row> rows, size_t live,
                                        std::span<const FedChunk> fed);
  /// Feeds tokens of prompts alone. Launches and returns.
  Status feed(std::span<const FedChunk> chunks);
  /// Copies a row's logits of the last step [vocabulary]; launches and returns.
  Status copy_logits(size_t row, float* to);

 private:
  cudaStream_t stream() { return static_cast<cudaStream_t>(device_->stream().native); }
  /// What is read of rows, [listed_] each: tokens, positions, sequences.
  int32_t* in(int64_t list) { return reinterpret_cast<int32_t*>(step_.data()) + list * listed_; }
  /// Makes these lists, of `rows` and then of what is fed.
  Status list(std::span<const Row> rows, std::span<const FedChunk> fed);
  int32_t* report(int64_t step) { return static_cast<int32_t*>(report_.get()) + step * rows_; }
  Status launch_step(int64_t step);
  /// Prefill::step(), which is recorded when it comes again and replayed from then on: launching
  /// its kernels one by one takes longer than few rows of them.
  Status step_rows();
  /// Waits for a step's token of a row.
  Result<int32_t> await(int64_t step, size_t row);

  Prefill* prefill_ = nullptr;
  Device* device_ = nullptr;
  int64_t vocabulary_ = 0;
  int64_t rows_ = 0;    // of the last run
  int64_t listed_ = 0;  // with what was fed in it
  DeviceMemory step_;
  std::vector<FedRows> fed_;            // what the lists have of prompts, until it has been fed
  Handle<void*, cudaFreeHost> report_;  // i32 [steps of a run][rows_], mapped
  int64_t reported_ = 0;                // tokens that it has room for
  std::vector<int32_t> best_;
  /// What a step without prompts is launched with: rows, and how far its lists are apart.
  using Shape = std::pair<int64_t, int64_t>;
  Shape stepped_;   // last
  Shape recorded_;  // of replay_
  Handle<cudaGraphExec_t, cudaGraphExecDestroy> replay_;
};

}  // namespace weft::hopper
