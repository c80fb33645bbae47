// What follows best, of the logits of a step's rows, and the rows' next step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/result.h"

namespace weft::hopper {

struct BestTokens {
  const float* logits = nullptr;  ///< [rows][stride]
  int64_t stride = 0;
  int32_t vocabulary = 0;
  int32_t* tokens = nullptr;     ///< [rows]: the best, the first of equal ones
  int32_t* positions = nullptr;  ///< [rows]: one further
  int32_t* report = nullptr;     ///< [rows], host memory: the tokens again
};

/// Errors: device (the launch failed).
Status launch_best_tokens(const BestTokens& args, int rows, cudaStream_t stream);

}  // namespace weft::hopper
