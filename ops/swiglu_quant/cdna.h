// swiglu_quant on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "ops/cdna_rows.h"

namespace weft::cdna {

/// Workgroup (x, y) of 64 `waves` threads, 16 waves at most, does row x: with scales of rows all of
/// it (y is 0), otherwise its y-th kChunksKept * 64 * waves chunks. Strides are bytes.
struct SwigluQuantParams {
  const void* gate;
  const void* up;
  int64_t gate_stride;
  int64_t up_stride;
  RowOutput y;
  int32_t columns;
  int32_t waves;
};

}  // namespace weft::cdna
