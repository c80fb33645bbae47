// gemm_bf16 on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct GemmBf16Params {
  const void* a;
  const void* b;
  void* out;
  void* partial;      ///< with splits: see join_splits()
  uint32_t* tickets;  ///< with splits: one a tile
  int64_t a_stride;
  int64_t b_stride;
  int64_t out_stride;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t tiles_m;
  int32_t tiles_n;
  int32_t splits;
  int32_t accumulate;  ///< not 0: add to what out, f32, holds
};

}  // namespace weft::cdna
