// gemm_skinny on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides of a, b and out are bytes, of scales elements. Workgroup w does tile w % tiles of n and
/// split w / tiles of k.
struct GemmSkinnyParams {
  const void* a;
  const void* b;
  const float* a_scale;
  const float* b_scale;
  void* out;
  float* partial;     ///< with splits: [tiles][splits][m][columns of a tile]
  uint32_t* tickets;  ///< with splits: one a tile
  int64_t a_stride;
  int64_t b_stride;
  int64_t out_stride;
  int64_t a_scale_row_stride;  ///< 0: one scale for the whole tensor
  int64_t a_scale_block_stride;
  int64_t b_scale_row_stride;
  int64_t b_scale_block_stride;
  int32_t m;
  int32_t n;
  int32_t row_bytes;  ///< of k
  int32_t tiles;
  int32_t splits;
  int32_t out_f32;  ///< not 0: out is f32, not bf16
};

}  // namespace weft::cdna
