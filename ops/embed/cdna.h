// embed on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// A workgroup of `threads` does row workgroup_index(). Strides are bytes.
struct EmbedParams {
  const void* table;
  const int32_t* tokens;
  void* out;
  void* copy;  ///< or null
  int64_t table_stride;
  int64_t out_stride;
  int64_t copy_stride;
  int32_t columns;
  int32_t threads;
  float scale;
};

}  // namespace weft::cdna
