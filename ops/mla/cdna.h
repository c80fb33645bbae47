// mla on AMD: what the host hands to the kernels of cdna.hip. Strides and pitches are bytes.
#pragma once

#include <cstdint>

#include "ops/cdna_gemm.h"

namespace weft::cdna {

struct MlaAppendParams {
  const void* x;
  const void* norm;
  void* cache;
  const float* cosines;
  const float* sines;
  /// Of rows of sequences of their own, or null: row r is at `first` + r.
  const int32_t* positions;
  const int32_t* sequences;  ///< beside positions
  int64_t x_stride;
  int64_t sequence_stride;
  int32_t first;
  int32_t rank;
  int32_t turned;
  float epsilon;
  int32_t norm_format;  ///< 0: f32, 1: bf16, 2: f16
  int32_t cache_bf16;   ///< not 0: the cache is bf16, else f32
};
inline constexpr int kMlaAppendThreads = 128;

/// Of each head out = a b', or a b where b lies transposed, and what RoPE turns beside it.
struct MlaHeadsParams {
  GemmTask task;  ///< of the first head; no splits
  int64_t a_pitch;
  int64_t b_pitch;
  int64_t out_pitch;
  const float* cosines;
  const float* sines;
  int32_t heads;
  int32_t turned;    ///< elements behind a head's k, and behind its n in out; 0: there are none
  int32_t out_bf16;  ///< not 0: out is bf16, else f32
};
inline constexpr int kMlaTileRows = 32;
inline constexpr int kMlaTileColumns = 64;

struct MlaAttentionParams {
  const void* q;
  const void* cache;
  float* out;
  const int32_t* positions;  ///< as MlaAppendParams has them
  const int32_t* sequences;
  int64_t q_stride;
  int64_t out_stride;
  int64_t sequence_stride;
  int32_t first;
  int32_t heads;
  int32_t rank;
  int32_t turned;
  int32_t q_bf16;     ///< not 0: q is bf16, else f32
  float score_scale;  ///< with log2(e)
};
inline constexpr int kMlaHeads = 16;  ///< of a workgroup
inline constexpr int kMlaRank = 512;  ///< at most
inline constexpr int kMlaRow = 576;   ///< elements of a latent row at most

}  // namespace weft::cdna
