// gemm_fp8_blockwise on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "ops/cdna_gemm.h"

namespace weft::cdna {

/// Strides of scales are elements.
struct GemmFp8BlockwiseParams {
  GemmTask task;
  const float* a_scale;
  const float* b_scale;
  int64_t a_scale_row_stride;
  int64_t a_scale_block_stride;
  int64_t b_scale_row_stride;
  int64_t b_scale_block_stride;
  const int32_t* group_of;  ///< of each kGroupRows rows of a; for the grouped kernels
};

}  // namespace weft::cdna
