// linear on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "base/activation.h"
#include "ops/cdna_gemm.h"

namespace weft::cdna {

struct LinearParams {
  GemmTask task;     ///< no splits
  const void* bias;  ///< of the weights' format, or null
  float alpha;
  float soft_cap;  ///< 0: none
  Activation activation;
  int32_t accumulate;  ///< not 0: add to what out, f32, holds
  int32_t out_bf16;    ///< not 0: out is bf16, else f32
};

inline constexpr int kLinearTile = 64;  ///< rows and columns of a workgroup's part of out

}  // namespace weft::cdna
