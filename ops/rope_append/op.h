// rope_append: rotates queries and keys by their position (RoPE, Su et al. 2021; the half-split
// pairing of Hugging Face checkpoints: element i turns with element i + half of those that turn)
// and appends keys and values to the cache at their positions.
#pragma once

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct RopeAppendArgs {
  ConstMatrix q;  ///< [rows, query_heads * head_dim], f32
  ConstMatrix k;  ///< [rows, kv_heads * head_dim], f32
  ConstMatrix v;  ///< [rows, kv_heads * head_dim], f32
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                ///< even
  const int32_t* positions = nullptr;  ///< [rows]
  const float* cosines = nullptr;      ///< [rows, (head_dim - unturned) / 2]
  const float* sines = nullptr;
  Matrix q_out;   ///< rotated queries, f32 or bf16; may be q (in place) when f32
  KvCache cache;  ///< keys and values go to [kv_head][position[r]]; without keys: queries alone
  /// Elements at the end of each head that are copied as they are; even. head_dim: no RoPE, and
  /// cosines and sines are not read.
  int64_t unturned = 0;
};

/// Norms of each head before it turns: RMSNorm over head_dim (ops/rmsnorm/op.h), q's and k's.
struct HeadNorms {
  ConstVector query, key;  ///< weights [head_dim], both in one format
  float epsilon = 0;
  float weight_offset = 0;
};

namespace reference {
/// q: [rows, query_heads * head_dim], k: [rows, kv_heads * head_dim], both rotated.
void rope_append(const RopeAppendArgs& args, Range rows, double* q, double* k);
}  // namespace reference
namespace cpu {
/// Query heads of the KV heads in `kv_heads` (query_heads / kv_heads each), and those KV heads.
void rope_append(const RopeAppendArgs& args, Range rows, Range kv_heads);
}  // namespace cpu

}  // namespace weft
