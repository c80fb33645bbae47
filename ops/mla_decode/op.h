// mla_decode: attention of a decode step over latent rows (multi-head latent attention in its
// absorbed form, ops/mla): one key of 576 elements a position for all heads, [latent: 512 | part
// that RoPE turned: 64], whose first 512 elements are the value as well. A sequence of n keys has 1
// to 4 query tokens, the last n - tokens .. n - 1 of them; query token t sees keys 0 .. n - tokens
// + t. Softmax in f32, split over the keys like Flash-Decoding; the parts are merged in the same
// launch, in a fixed order.
#pragma once

#include <cstddef>
#include <span>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

inline constexpr int64_t kLatentRank = 512;
inline constexpr int64_t kLatentTurned = 64;
inline constexpr int64_t kLatentRow = kLatentRank + kLatentTurned;
/// A row in e4m3fn: 512 codes, an f32 scale for each 128 of them, the turned part in bf16. An
/// element of the latent is its code times its scale in f32, rounded to bf16.
inline constexpr int64_t kLatentScales = kLatentRank / 128;
inline constexpr int64_t kLatentFp8Bytes = kLatentRank + 4 * kLatentScales + 2 * kLatentTurned;
static_assert(kLatentFp8Bytes == 656);

/// The latent rows of sequences: in one piece each, or in pages of kKvPage rows.
struct LatentCache {
  const void* rows = nullptr;      ///< aligned to 16 bytes
  DType dtype = DType::bf16;       ///< or e4m3fn: rows of kLatentFp8Bytes
  int64_t blocks = 0;              ///< pages, or sequences
  int64_t block_rows = kKvPage;    ///< rows of a block; in pages kKvPage
  int64_t block_stride = kKvPage;  ///< rows from one block to the next
  /// In pages: [sequence][table_stride], the page of positions [64 i, 64 i + 64). Null: sequence i
  /// is block i.
  const int32_t* tables = nullptr;
  int64_t table_stride = 0;
  /// Not in pages: [sequence], which block is its. Null: sequence i is block i.
  const int32_t* owners = nullptr;
  /// Rows hold keys' last 64 elements as they are before RoPE, which turns them each time they are
  /// read: [position][64] in bf16, cosines of 32 angles and then their sines, aligned to 16 bytes.
  /// Elements (i, i + 32) = (a, b) become (a cos - b sin, b cos + a sin); products and sums are
  /// rounded to bf16. Rows are in bf16 then. Null: keys are in the cache as they are multiplied.
  const void* angles = nullptr;

  constexpr int64_t row_bytes() const {
    return dtype == DType::bf16 ? 2 * kLatentRow : kLatentFp8Bytes;
  }
  /// Which row a position is; those up to the next multiple of kKvPage follow it.
  constexpr int64_t place(int64_t sequence, int64_t position) const {
    return tables != nullptr
               ? tables[sequence * table_stride + position / kKvPage] * block_stride +
                     position % kKvPage
               : (owners != nullptr ? owners[sequence] : sequence) * block_stride + position;
  }
};

inline constexpr int64_t kLatentSequences = 2048;
inline constexpr int64_t kLatentHeads = 128;
inline constexpr int64_t kLatentTokens = 4;

struct MlaDecodeArgs {
  int64_t batch = 0;   ///< sequences, 1 to kLatentSequences
  int64_t tokens = 0;  ///< query tokens of each, 1 to kLatentTokens
  int64_t heads = 0;   ///< 1 to kLatentHeads
  ConstMatrix q;       ///< [batch * tokens, heads * 576], bf16
  LatentCache cache;
  /// [batch]: keys of a sequence, its query tokens' included, but for `more`; 0 is no key at all.
  /// Where the other operands are.
  const int32_t* lengths = nullptr;
  int64_t more = 0;  ///< keys that each has beside its length
  /// All are one sequence, block 0, not in pages, and its tokens follow one another: the i-th has i
  /// * tokens + more keys, and `lengths` is not read.
  bool run = false;
  /// The bits of a sequence's results depend on no other sequence, nor how many there are: its keys
  /// are not dealt together with others'.
  bool alone = false;
  float scale = 1;  ///< of q.k before the softmax; positive
  Matrix out;       ///< [batch * tokens, heads * 512], f32 or bf16; zeros where no key is seen
  float* sums = nullptr;  ///< [batch * tokens, heads]: ln of the sums of exponentials, or null
  Workspace workspace;

  constexpr int64_t rows() const { return tokens * heads; }  ///< of a sequence
  constexpr int64_t length(int64_t sequence) const {
    return (run ? sequence * tokens : lengths[sequence]) + more;
  }
  constexpr int64_t place(int64_t sequence, int64_t position) const {
    return cache.place(run ? 0 : sequence, position);
  }
};

/// The keys that query token `token` of `tokens` sees of `length`.
constexpr int64_t latent_keys(int64_t length, int64_t tokens, int64_t token) {
  const int64_t seen = length - tokens + token + 1;
  return seen < 0 ? 0 : seen;
}

/// Error (usage): which of the conditions above does not hold.
Status check(const MlaDecodeArgs& args);
PlanKey plan_key(const MlaDecodeArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status mla_decode(const MlaDecodeArgs& args, Stream stream);
Result<size_t> mla_decode_workspace(const MlaDecodeArgs& args, Stream stream);
const Kernel<MlaDecodeArgs>* mla_decode_kernel(Arch arch);

namespace reference {
/// Of rows of q and out; out and magnitudes, the sums of |terms|: [rows.size()][heads * 512]; sums:
/// [rows.size()][heads].
void mla_decode(const MlaDecodeArgs& args, Range rows, double* out, double* magnitudes,
                double* sums);
/// An element of the cache, exactly.
double latent_element(const LatentCache& cache, int64_t row, int64_t column);
}  // namespace reference
namespace cpu {
/// These heads of these sequences. A result's bits depend on neither range.
void mla_decode(const MlaDecodeArgs& args, Range sequences, Range heads,
                std::span<std::byte> scratch);
size_t mla_decode_scratch_bytes(const MlaDecodeArgs& args);
}  // namespace cpu
namespace hopper {
extern const Kernel<MlaDecodeArgs> mla_decode;  // NOLINT: named as the operation
}
namespace cdna {
extern const weft::Kernel<MlaDecodeArgs> mla_decode;  // NOLINT: named as the operation
}

}  // namespace weft
