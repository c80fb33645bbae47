// rope_append on AMD: what the host hands to the kernel of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// A workgroup does row workgroup_index(). Strides are elements.
struct RopeAppendParams {
  const float* q;
  const float* k;
  const float* v;
  const float* cosines;
  const float* sines;
  void* q_out;
  void* keys;
  void* values;
  const int32_t* positions;  ///< of rows; null: first, first + 1, ...
  const int32_t* sequences;  ///< with positions
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t q_out_stride;
  int64_t head_stride;      ///< of the cache
  int64_t sequence_stride;  ///< of the cache, with positions
  int32_t first;
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t unturned;
  int32_t q_bf16;      ///< not 0: q_out is bf16
  int32_t cache_bf16;  ///< not 0: the cache is bf16
};

}  // namespace weft::cdna
