// attention_backward on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct AttentionBackwardParams {
  const void* q;
  const void* k;
  const void* v;
  const void* out;
  const void* d_out;
  const float* lse;
  /// [2][sequences, query_heads, stats_tokens]: of each query log2(e) lse, then delta; zeros where
  /// the sequence has ended. The first kernel makes them for the other two.
  float* stats;
  void* d_q;
  void* d_k;
  void* d_v;
  int64_t q_stride;
  int64_t k_stride;
  int64_t v_stride;
  int64_t out_stride;
  int64_t d_out_stride;
  int64_t d_q_stride;
  int64_t d_k_stride;
  int64_t d_v_stride;
  int32_t sequences;
  int32_t tokens;
  int32_t stats_tokens;  ///< tokens, up to whole tiles
  int32_t query_heads;
  int32_t group;  ///< query heads of a KV head
  int32_t head_dim;
  int32_t causal;
  int32_t bf16;  ///< not 0: gradients are bf16, else f32
  float scale;   ///< of scores
};

inline constexpr int kBackwardThreads = 512;
inline constexpr int kBackwardRows = 128;     ///< of a workgroup: 16 a wave
inline constexpr int kBackwardTile = 64;      ///< rows that pass by it at a time
inline constexpr int kMostBackwardDim = 128;  ///< elements of a head
inline constexpr int kStatsOfWorkgroup = 32;  ///< queries' heads: 16 lanes have one

}  // namespace weft::cdna
