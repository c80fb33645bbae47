// gated_linear on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "base/activation.h"
#include "ops/cdna_gemm.h"

namespace weft::cdna {

struct GatedLinearParams {
  GemmTask task;  ///< b is gate; no splits
  const void* up;
  const void* gate_bias;  ///< of the weights' format, or null
  const void* up_bias;
  int64_t up_stride;  ///< bytes
  Activation activation;
  int32_t out_bf16;  ///< not 0: out is bf16, else f32
};

inline constexpr int kGatedLinearTile = 64;  ///< rows and columns of a workgroup's part of out

}  // namespace weft::cdna
