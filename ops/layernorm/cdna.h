// layernorm on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// A workgroup of 64 `waves` threads, 16 waves at most, does row workgroup_index(). Strides are
/// bytes.
struct LayerNormParams {
  const void* x;
  const void* weight;
  const void* bias;
  void* out;
  int64_t x_stride;
  int64_t out_stride;
  int32_t columns;
  int32_t waves;
  float epsilon;
};

}  // namespace weft::cdna
