// mla: what multi-head latent attention (DeepSeek-V2, 2024) has beside a GQA of one KV head, in its
// absorbed form. A cached row of a position is [latent: rank | key part that RoPE turned: turned],
// the latent after its norm. With each head's rows K [unturned, rank] and V [value, rank] of the
// checkpoint's matrix w ("kv_b_proj": for each head K, then V), a key is [K latent | turned part]
// and a value V latent, so that
//   q.key = (K^T q_unturned).latent + q_turned.turned part,  sum_t p_t value_t = V sum_t p_t
//   latent_t
// and no key or value is ever made: attention (ops/attention) of query_heads heads over one KV head
// of rank + turned elements, whose values are the rows themselves. RoPE turns pairs of neighbours,
// (2i, 2i + 1) by angle i.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/range.h"
#include "base/scaling.h"
#include "ops/matrix.h"

namespace weft {

struct LatentAppendArgs {
  ConstMatrix x;     ///< [rows, rank + turned], f32, as projected
  ConstVector norm;  ///< [rank]: weights of the latent's RMS norm
  int64_t rank = 0;
  int64_t turned = 0;  ///< even
  float epsilon = 0;
  const int32_t* positions = nullptr;  ///< [rows]
  const float* cosines = nullptr;      ///< [rows, turned / 2]
  const float* sines = nullptr;
  KvCache cache;  ///< its keys are written: one KV head of rank + turned elements
};

/// What the queries' and the values' products share.
struct LatentHeads {
  int64_t heads = 0;
  int64_t rank = 0;
  int64_t unturned = 0;
  int64_t turned = 0;
  int64_t value = 0;
  ConstMatrix w;             ///< [heads * (unturned + value), rank]: f32, bf16, f16 or e4m3fn
  WeightScales scales = {};  ///< of w in e4m3fn

  int64_t key_row(int64_t head) const { return head * (unturned + value); }
  int64_t value_row(int64_t head) const { return key_row(head) + unturned; }
};

struct LatentQueriesArgs {
  LatentHeads of;
  ConstMatrix q;                   ///< [rows, heads * (unturned + turned)], f32
  const float* cosines = nullptr;  ///< [rows, turned / 2]
  const float* sines = nullptr;
  /// [rows, heads * (rank + turned)], f32 or bf16: K^T q_unturned, turned q_turned
  Matrix out;
};

struct LatentValuesArgs {
  LatentHeads of;
  ConstMatrix a;      ///< [rows, heads * pitch], f32: attended rows, of which only latents are read
  int64_t pitch = 0;  ///< elements of a from a head's to the next one's: at least rank
  Matrix out;         ///< [rows, heads * value], f32 or bf16: V times each head's latent
};

namespace reference {
/// out: [rows.size(), rank + turned]: what the cache gets.
void latent_append(const LatentAppendArgs& args, Range rows, double* out);
/// out: [rows.size(), heads.size() * (rank + turned)].
void latent_queries(const LatentQueriesArgs& args, Range rows, Range heads, double* out);
/// out: [rows.size(), heads.size() * value].
void latent_values(const LatentValuesArgs& args, Range rows, Range heads, double* out);
}  // namespace reference

namespace cpu {
void latent_append(const LatentAppendArgs& args, Range rows);
/// A result's bits depend on neither range.
void latent_queries(const LatentQueriesArgs& args, Range rows, Range heads);
/// The turned parts alone.
void latent_turned_queries(const LatentQueriesArgs& args, Range rows, Range heads);
/// Columns of K^T q_unturned alone, to an out of [rows, heads * rank]. Scales of w that are of
/// blocks want a head's columns from multiples of 16 on.
void latent_query_columns(const LatentQueriesArgs& args, Range rows, Range columns);
/// As linear promises. Scales of w that are of blocks want value rows from multiples of 128 on.
void latent_values(const LatentValuesArgs& args, Range rows, Range heads,
                   std::span<std::byte> scratch);
/// Of columns of out.
void latent_value_columns(const LatentValuesArgs& args, Range rows, Range columns,
                          std::span<std::byte> scratch);
size_t latent_values_scratch_bytes(const LatentValuesArgs& args, int64_t rows);
}  // namespace cpu

}  // namespace weft
