// What the host hands to the kernels of widen.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

inline constexpr int kWidenThreads = 256;

/// Workgroup r makes row r of a matrix: codes in e4m3fn times their scales (WeightScales).
struct WidenParams {
  const void* codes;  ///< [rows, columns]
  const float* scales;
  void* out;             ///< [rows, columns], in the format that the kernel's name ends with
  int32_t columns;       ///< a multiple of 8
  int32_t scale_rows;    ///< that share their scales
  int32_t row_stride;    ///< from their scales to the next ones'
  int32_t block_stride;  ///< from a scale to that of the next 128 columns
};

}  // namespace weft::cdna
