// What the AMD kernels on rows (rmsnorm_quant, swiglu_quant) share between host and device.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Quantised (ops/scales.h) as the kernels take it.
struct RowOutput {
  void* out;
  int64_t out_stride;  ///< bytes
  float* scales;       ///< null: none
  int64_t scale_row_stride;
  int64_t scale_block_stride;
};

inline constexpr int kChunk = 8;       ///< columns that a thread reads at once: 16 bytes
inline constexpr int kChunksKept = 2;  ///< chunks that a thread keeps in registers

}  // namespace weft::cdna
