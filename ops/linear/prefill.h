// What linear operations of a chunk's rows work in, on any GPU.
#pragma once

#include "ops/kernel.h"

namespace weft {

/// On the device, where rows are bf16. How much: prefill_linear_scratch_rows() and
/// prefill_linear_workspace() of the architecture.
struct PrefillScratch {
  float* product = nullptr;  ///< [rows, n]: the product alone, where something comes after it
  Workspace workspace;
  /// On sm_90a: a row's bits do not depend on how many rows there are (GemmBf16Args::whole_k).
  bool whole_k = false;
  /// On sm_90a: null, or the weights' tiles (ops/linear/hopper_tiles.h), which the rows take.
  const char* tiles = nullptr;
};

}  // namespace weft
