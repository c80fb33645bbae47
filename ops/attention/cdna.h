// attention on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// Strides are bytes.
struct AttentionParams {
  const void* q;
  const void* keys;
  const void* values;
  void* out;
  float* lse;  ///< [sequences, query_heads, rows]: logarithms of the sums of exponentials; or null
  int64_t q_stride;
  int64_t out_stride;
  int64_t key_stride;    ///< from a position's key to the next one's
  int64_t value_stride;  ///< likewise
  int64_t head_stride;   ///< of keys and values
  int32_t sequences;     ///< as many rows and keys each; of several, keys follow as rows do
  int32_t rows;
  int32_t first;   ///< position of row 0
  int32_t causal;  ///< 0: a row sees all keys, as many as there are rows
  int32_t query_heads;
  int32_t group;  ///< query heads of a KV head
  int32_t head_dim;
  int32_t window;               ///< 0: all keys
  int32_t out_bf16;             ///< not 0: out is bf16, else f32
  float score_scale;            ///< with log2(e): of scores, or of tanh() of them
  float cap_scale;              ///< what scores are multiplied by under tanh(); 0: no soft cap
  const void* sinks = nullptr;  ///< [query_heads] or null: a logit of each that joins the softmax
  int32_t sinks_f32 = 0;        ///< not 0: they are f32, else bf16
  /// Of rows of sequences of their own, or null: a workgroup has a KV head's query heads of one row
  /// then, `rows` are counted by the grid alone, and `first` is not looked at.
  const int32_t* positions = nullptr;
  const int32_t* row_sequences = nullptr;  ///< beside positions
  int64_t sequence_stride = 0;             ///< of keys and values, from a sequence to the next
};

/// Of a workgroup, 16 a wave: rows of a head, or in a step query heads of a row.
inline constexpr int kAttentionRows = 64;

}  // namespace weft::cdna
