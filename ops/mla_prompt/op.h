// mla_prompt: attention of a prompt's rows over latent rows (ops/mla), from queries as they are
// projected to each head's values. Many rows have less to do where keys and values are multiplied
// out than absorbed: with DeepSeek's sizes a head's query meets a key in 192 + 128 products instead
// of 576 + 512, and from some 170 rows on that saves more than products of w with the latents of
// all positions cost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/range.h"
#include "ops/mla/op.h"

namespace weft {

/// Attention of many rows of a sequence, each over all up to itself, whose latent rows the cache
/// has.
struct LatentAttentionArgs {
  LatentHeads of;
  ConstMatrix q;                   ///< [rows, heads * (unturned + turned)], f32, as projected
  const float* cosines = nullptr;  ///< [rows, turned / 2]
  const float* sines = nullptr;
  const int32_t* positions = nullptr;  ///< [rows], consecutive
  KvCache cache;                       ///< as LatentAppendArgs has it
  /// f32 or bf16: what queries, keys and values are rounded to before they are multiplied.
  DType element = DType::f32;
  float scale = 1;       ///< of q.k before the softmax; positive
  Matrix out;            ///< [rows, heads * value], f32 or bf16
  bool absorbs = false;  ///< cpu: whatever the rows
};

/// Whether `rows`, which end where the `positions` that are seen do, have less to do when keys and
/// values are multiplied out.
constexpr bool multiplies_out(const LatentHeads& of, int64_t rows, int64_t positions) {
  const int64_t seen = rows * positions - rows * (rows - 1) / 2;  // by all rows
  const int64_t saved = 2 * of.rank + of.turned - (of.unturned + of.turned + of.value);
  return seen * saved > (positions - rows) * of.rank * (of.unturned + of.value);
}

namespace reference {
/// out: [rows.size(), heads.size() * value]. Queries are rounded to args.element, nothing else is.
void latent_attention(const LatentAttentionArgs& args, Range rows, Range heads, double* out);
}  // namespace reference

namespace cpu {
/// Many rows are multiplied out where that is less (multiplies_out()), unless args.absorbs. A
/// result's bits depend on that, on whether rows are more than kAttentionFewRows, and on nothing
/// else of either range. Scales of w that are of blocks want heads' parts of multiples of 128.
void latent_attention(const LatentAttentionArgs& args, Range rows, Range heads,
                      std::span<std::byte> scratch);
/// Enough for calls of up to `rows` rows and `heads` heads.
size_t latent_attention_scratch_bytes(const LatentAttentionArgs& args, int64_t rows, int64_t heads);
}  // namespace cpu

}  // namespace weft
