// attention: causal grouped-query attention over the KV cache (GQA, Ainslie et al. 2023), softmax
// on the fly (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022). A row at position p
// sees keys max(0, p - window + 1) .. p. With a soft cap (Gemma-2) scores are c tanh(scale q.k / c)
// instead of scale q.k. A sink (gpt-oss) is a score of a query head that belongs to no key: it
// takes its share of the softmax and adds no value. For decode, a row's keys are split into
// `splits` equal ranges (Flash-Decoding) whose partial results attention_combine merges; splits and
// block size never depend on the number of workers, so neither do the bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct AttentionArgs {
  ConstMatrix q;  ///< [rows, query_heads * head_dim], rotated. f32: products in f32, or, with a
                  ///< bf16 cache, of 17 bits of queries and probabilities, summed in f32. bf16
                  ///< (with a bf16 cache): products and probabilities in bf16, summed in f32.
  KvCache cache;  ///< values may be keys: latent rows (ops/mla)
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                ///< even
  const int32_t* positions = nullptr;  ///< [rows]; consecutive within one call's rows, which are of
                                       ///< one sequence
  float scale = 1;                     ///< of q.k before the softmax; positive
  float soft_cap = 0;                  ///< 0: none
  int64_t window = 0;                  ///< 0: all keys
  int64_t splits = 1;
  /// [rows][query_heads][splits][head_dim + 2] f32: unnormalised sum, maximum of the scores, sum of
  /// exponentials. A split with no keys has maximum -infinity and sums 0. Null, of one split alone:
  /// straight to out.
  float* partials = nullptr;
  Matrix out;              ///< [rows, query_heads * head_dim], f32 or bf16
  ConstVector sinks = {};  ///< [query_heads] or null data; of partials their merge reads it
};

/// Softmax runs over blocks of this many keys, aligned to position 0 wherever a range starts.
inline constexpr int64_t kAttentionBlock = 64;
static_assert(kKvPage % kAttentionBlock == 0, "a block lies in one page");

/// A call with at most this many rows, or with splits > 1, streams the cache (decode); one with
/// more is computed in blocks. The two round differently; within each the bits of a row depend on
/// no other row.
inline constexpr int64_t kAttentionFewRows = 4;

/// The keys that a row at `position` sees.
constexpr Range attention_keys(int64_t position, int64_t window) {
  return {window > 0 ? std::max<int64_t>(0, position - window + 1) : 0, position + 1};
}

/// Those of split `split`: an equal share of the row's blocks. Empty for some splits when there are
/// more splits than blocks.
constexpr Range attention_split(int64_t position, int64_t window, int64_t splits, int64_t split) {
  const Range keys = attention_keys(position, window);
  const int64_t first = keys.begin / kAttentionBlock;
  const int64_t blocks = (keys.end + kAttentionBlock - 1) / kAttentionBlock - first;
  return {std::max(keys.begin, (first + blocks * split / splits) * kAttentionBlock),
          std::min(keys.end, (first + blocks * (split + 1) / splits) * kAttentionBlock)};
}

/// The query heads of one KV head of a row over one split of the keys.
struct AttentionTask {
  int64_t row = 0;
  int64_t kv_head = 0;
  int64_t split = 0;
};

namespace reference {
void attention(const AttentionArgs& args, Range rows, Range query_heads, double* out);
}
namespace cpu {
/// Attends with the query heads of `kv_heads`; with partials, over split `split` of the keys into
/// partials, otherwise (split 0) straight to out. `next`: what the caller attends with after it,
/// whose first keys a call for few rows brings towards the caches; null: not known.
void attention(const AttentionArgs& args, Range rows, Range kv_heads, int64_t split,
               std::span<std::byte> scratch, const AttentionTask* next = nullptr);
/// Enough for calls of up to `rows` rows.
size_t attention_scratch_bytes(const AttentionArgs& args, int64_t rows);
/// Merges the partials of these query heads into out.
void attention_combine(const AttentionArgs& args, Range rows, Range query_heads);
}  // namespace cpu

}  // namespace weft
