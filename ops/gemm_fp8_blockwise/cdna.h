// gemm_fp8_blockwise on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides of a, b and out are bytes (a row of a row-major matrix, a k of a column-major one), of
/// scales elements.
struct GemmFp8BlockwiseParams {
  const void* a;
  const void* b;
  const float* a_scale;
  const float* b_scale;
  void* out;
  void* partial;      ///< with splits: see join_splits()
  uint32_t* tickets;  ///< with splits: one a tile
  int64_t a_stride;
  int64_t b_stride;
  int64_t out_stride;
  int64_t a_scale_row_stride;
  int64_t a_scale_block_stride;
  int64_t b_scale_row_stride;
  int64_t b_scale_block_stride;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t tiles_m;
  int32_t tiles_n;
  int32_t splits;
};

}  // namespace weft::cdna
