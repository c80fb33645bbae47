// mla_decode on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct MlaDecodeParams {
  const void* q;
  const void* cache;
  const void* angles;      ///< of LatentCache, or null
  const int32_t* tables;   ///< or null
  const int32_t* owners;   ///< or null
  const int32_t* lengths;  ///< null: sequences are runs of `tokens` rows of one, block 0
  void* out;
  float* sums;        ///< or null
  float* parts;       ///< [workgroups][2] of mla_part_floats()
  uint32_t* tickets;  ///< [workgroups]
  int64_t q_stride;
  int64_t out_stride;
  int64_t block_stride;  ///< of the cache
  int64_t table_stride;  ///< elements
  int32_t batch;
  int32_t tokens;
  int32_t heads;
  int32_t row_tiles;  ///< of a sequence's tokens times heads
  int32_t workgroups;
  int32_t more;       ///< keys of each sequence beside its length
  int32_t out_bf16;   ///< not 0: out is bf16, else f32
  float score_scale;  ///< with log2(e)
};

inline constexpr int kMlaBlockKeys = 32;  ///< in LDS at a time
/// What a workgroup leaves of a job that it shares: sums, and of each row the highest score and the
/// sum of exponentials.
constexpr int mla_part_floats(int rows) { return rows * (512 + 2); }

}  // namespace weft::cdna
