// BatchRunner on a Hopper GPU: sequences that come and go, each in a row of its own (rows.h: of the
// resident kernel up to eight, else of launched kernels) with a cache of its own, where its
// positions lie one after the other. Pages hold what has been fed of prompts, for others that begin
// alike: they are copied on the device.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/batch_runner.h"
#include "engine/hopper/runner.h"

namespace weft::hopper {

struct BatchRunnerOptions {
  RunnerOptions runner;  ///< sequences: slots; capacity: positions of a sequence
  int64_t chunk = 512;   ///< tokens of prompts that are fed at once: a multiple of kKvPage
  bool drafts = false;   ///< whether rows of a step may be of one sequence
  int64_t host_pages = 0;
};

/// `pages`: that can be used, or what memory allows; what there are, afterwards. Errors: as
/// create_runner(), and input where prompts cannot be fed by chunks.
Result<std::unique_ptr<BatchRunner>> create_batch_runner(const ModelConfig& config,
                                                         const Weights& weights,
                                                         const BatchRunnerOptions& options,
                                                         int64_t& pages);

}  // namespace weft::hopper
