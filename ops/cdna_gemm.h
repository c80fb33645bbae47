// What the AMD kernels of tiled matrix products (gemm_fp8_blockwise, gemm_bf16) are handed by the
// host, whatever they multiply.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// out[m, n] in tiles, k split among workgroups. Strides are bytes.
struct GemmTask {
  const void* a;
  const void* b;
  void* out;
  void* partial;      ///< with splits: see join_splits() (arch/cdna/gemm.hip.h)
  uint32_t* tickets;  ///< with splits: one a tile
  int64_t a_stride;   ///< of a row, or of a k where the layout is column-major
  int64_t b_stride;
  int64_t out_stride;
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t tiles_m;
  int32_t tiles_n;
  int32_t splits;
};

}  // namespace weft::cdna
