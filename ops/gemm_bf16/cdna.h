// gemm_bf16 on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "ops/cdna_gemm.h"

namespace weft::cdna {

struct GemmBf16Params {
  GemmTask task;
  int32_t accumulate;  ///< not 0: add to what out, f32, holds
};

}  // namespace weft::cdna
