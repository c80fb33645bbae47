// rmsnorm on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct RmsNormParams {
  const void* x;
  const void* weight;
  void* residual;  ///< or null
  void* out;       ///< or null
  int64_t x_stride;
  int64_t residual_stride;
  int64_t out_stride;
  int32_t rows;  ///< groups counted apart
  int32_t columns;
  int32_t groups;
  int32_t waves;  ///< of a workgroup
  float epsilon;
  float scale;
  float weight_offset;
};

/// Rows up to this have a wave each, longer ones a workgroup.
inline constexpr int kWaveColumns = 1024;

}  // namespace weft::cdna
