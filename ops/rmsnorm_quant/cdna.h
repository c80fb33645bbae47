// rmsnorm_quant on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "ops/cdna_rows.h"

namespace weft::cdna {

/// A workgroup of 64 `waves` threads, 16 waves at most, does row workgroup_index(). Strides are
/// bytes.
struct RmsNormQuantParams {
  const void* x;
  void* residual;  ///< null: none
  const void* weight;
  int64_t x_stride;
  int64_t residual_stride;
  RowOutput y;
  int32_t columns;
  int32_t waves;
  float epsilon;
};

}  // namespace weft::cdna
