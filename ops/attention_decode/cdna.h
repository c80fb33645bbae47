// attention_decode on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct AttentionDecodeParams {
  const void* q;
  const void* keys;
  const void* values;
  const int32_t* tables;  ///< of pages, or of one cache a sequence; null: each has its own
  const int32_t* lengths;
  const void* sinks;  ///< or null
  void* out;
  float* distances;   ///< or null
  float* parts;       ///< [workgroups][2] of decode_part_floats()
  uint32_t* tickets;  ///< [workgroups]
  int64_t q_stride;
  int64_t out_stride;
  int64_t head_stride;   ///< of keys and values
  int64_t table_stride;  ///< elements
  int32_t batch;
  int32_t page_shift;  ///< keys of what a table's entry names, as a power of 2
  int32_t more;        ///< keys of each sequence beside its length
  int32_t tokens;
  int32_t query_heads;
  int32_t kv_heads;
  int32_t group;  ///< query heads of a KV head
  int32_t head_dim;
  int32_t row_tiles;  ///< of 16 rows: a KV head's query heads times tokens
  int32_t window;     ///< 0: all keys
  int32_t workgroups;
  int32_t out_bf16;       ///< not 0: out is bf16, else f32
  int32_t sinks_format;   ///< 0: f32, 1: bf16, 2: f16
  int32_t unified;        ///< not 0: exponentials of scores less unified_maximum
  float unified_maximum;  ///< with log2(e)
  float score_scale;      ///< with log2(e): of scores, or of tanh() of them
  float cap_scale;        ///< what scores are multiplied by under tanh(); 0: no soft cap
};

inline constexpr int kDecodeTileRows = 16;
inline constexpr int kDecodeBlockKeys = 32;  ///< that a wave takes at a time
/// What a workgroup leaves of a job that it shares: sums, and of each row a SoftmaxState.
constexpr int decode_part_floats(int columns) { return kDecodeTileRows * (columns + 4); }

}  // namespace weft::cdna
