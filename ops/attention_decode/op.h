// attention_decode: grouped-query attention of a decode step's query tokens over the caches of many
// sequences (GQA, Ainslie et al. 2023). A sequence of n keys has 1 to 4 query tokens, at positions
// n
// - tokens .. n - 1; the one at p sees keys max(0, p - window + 1) .. p. Soft caps and sinks are as
// in ops/attention. The keys are split over the device (Flash-Decoding) and the parts merged in the
// same launch, in a fixed order. Exponentials are taken of scores less the highest so far, or, with
// a unified maximum (FlashDecoding++, Hong et al. 2023), less a constant that the caller knows to
// be near: nothing needs to be rescaled then. A split with a score more than kUnifiedReach away
// from it is computed again, exactly, in the same launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

/// Keys and values in bf16, [block][kv head][block_rows][head_dim]: of sequences in one piece each,
/// or in pages of kKvPage positions. All multiples of 16 bytes.
struct KvBlocks {
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t blocks = 0;            ///< pages, or sequences
  int64_t block_rows = kKvPage;  ///< positions of a block
  int64_t head_stride = 0;       ///< elements from one head of a block to the next; a block has
                                 ///< kv_heads of these
  /// In pages: [sequence][table_stride], the page of positions [64 i, 64 i + 64). Null: sequence i
  /// is block i.
  const int32_t* tables = nullptr;
  int64_t table_stride = 0;

  /// That a sequence has room for.
  constexpr int64_t positions() const {
    return tables == nullptr ? block_rows : table_stride * kKvPage;
  }
  /// Where a head's row of a position is, in elements.
  constexpr int64_t place(int64_t sequence, int64_t position, int64_t head, int64_t kv_heads,
                          int64_t head_dim) const {
    const int64_t block =
        tables == nullptr ? sequence : tables[sequence * table_stride + position / kKvPage];
    const int64_t row = tables == nullptr ? position : position % kKvPage;
    return (block * kv_heads + head) * head_stride + row * head_dim;
  }
};

inline constexpr int64_t kDecodeTokens = 4;
inline constexpr int64_t kDecodeDim = 256;
inline constexpr float kUnifiedReach = 60;

struct AttentionDecodeArgs {
  int64_t batch = 0;        ///< sequences
  int64_t tokens = 0;       ///< query tokens of each, 1 to kDecodeTokens
  int64_t query_heads = 0;  ///< a multiple of kv_heads
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  ///< a multiple of 8, at most kDecodeDim
  ConstMatrix q;         ///< [batch * tokens, query_heads * head_dim], bf16
  KvBlocks cache;
  /// [batch]: keys of a sequence, its query tokens' included; 0 is no key at all. Where the other
  /// operands are.
  const int32_t* lengths = nullptr;
  float scale = 1;         ///< of q.k before the softmax; positive
  float soft_cap = 0;      ///< 0: none
  int64_t window = 0;      ///< 0: all keys
  ConstVector sinks = {};  ///< [query_heads], f32, bf16 or f16, or null data
  bool unified = false;    ///< exponentials of scores less unified_maximum
  float unified_maximum = 0;
  Matrix
      out;  ///< [batch * tokens, query_heads * head_dim], f32 or bf16; zeros where no key is seen
  /// With a unified maximum, [batch * tokens, query_heads] or null: how far away from it the
  /// farthest score of a row is, 0 of no keys. Beyond kUnifiedReach something was computed again.
  float* distances = nullptr;
  Workspace workspace;
};

/// The keys that query token `token` of `tokens` sees of `length`.
constexpr Range decode_keys(const AttentionDecodeArgs& args, int64_t length, int64_t token) {
  const int64_t end = std::max<int64_t>(0, length - args.tokens + token + 1);
  return {args.window > 0 ? std::max<int64_t>(0, end - args.window) : 0, end};
}

/// Error (usage): which of the conditions above does not hold.
Status check(const AttentionDecodeArgs& args);
PlanKey plan_key(const AttentionDecodeArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status attention_decode(const AttentionDecodeArgs& args, Stream stream);
Result<size_t> attention_decode_workspace(const AttentionDecodeArgs& args, Stream stream);
const Kernel<AttentionDecodeArgs>* attention_decode_kernel(Arch arch);

namespace reference {
/// Of rows of q and out; out and magnitudes, the sums of |terms|: [rows.size()][query_heads *
/// head_dim]; distances: [rows.size()][query_heads].
void attention_decode(const AttentionDecodeArgs& args, Range rows, double* out, double* magnitudes,
                      double* distances);
}  // namespace reference
namespace cpu {
/// The query heads of these KV heads, of these sequences; always exact. A result's bits depend on
/// neither range.
void attention_decode(const AttentionDecodeArgs& args, Range sequences, Range kv_heads,
                      std::span<std::byte> scratch);
size_t attention_decode_scratch_bytes(const AttentionDecodeArgs& args);
}  // namespace cpu
namespace hopper {
extern const Kernel<AttentionDecodeArgs> attention_decode;  // NOLINT: named as the operation
}
namespace cdna {
extern const weft::Kernel<AttentionDecodeArgs> attention_decode;  // NOLINT: named as the operation
}

}  // namespace weft
