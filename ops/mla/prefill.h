// What attention over latent rows takes of a chunk's rows, on any GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/kernel.h"
#include "ops/matrix.h"
#include "ops/mla/op.h"
#include "ops/row_places.h"

namespace weft {

struct PrefillLatentAttention {
  ConstMatrix q;  ///< [rows, heads * (rank + turned)], f32 or bf16
  /// The latent rows of a sequence, keys alone, or, of rows that have places, of the first one.
  KvCache cache;
  int64_t capacity = 0;   ///< rows of a sequence's cache
  int64_t sequences = 1;  ///< whose caches lie one behind the other
  int64_t heads = 0;
  int64_t rank = 0;
  int64_t turned = 0;
  float scale = 1;  ///< of q.k before the softmax; positive
  /// A row's bits depend on no other row, nor how many there are.
  bool alone = false;
  Matrix out;           ///< [rows, heads * rank], f32
  Workspace workspace;  ///< of an architecture's prefill_latent_workspace() bytes
};

/// Elements of a latent row, and of its rank, that GPUs' kernels take.
inline constexpr int kMostLatentRow = 576;
inline constexpr int kMostLatentRank = 512;

/// Why no GPU's kernels can take such operands; empty: they can. (Of queries and values it looks at
/// rows alone: heads are refused by each GPU's refuse_prefill_latents().)
std::string_view refuse_latents(const LatentAppendArgs& args);
std::string_view refuse_latents(const LatentQueriesArgs& args);
std::string_view refuse_latents(const LatentValuesArgs& args);
std::string_view refuse_latents(const PrefillLatentAttention& args);

/// Whether mla_decode has kernels for such operands: queries and a cache in bf16, of 512 + 64
/// elements a row.
bool is_mla_decode(const PrefillLatentAttention& args);
/// Rows [0, rows) of such, at positions first, first + 1, ... or as `places` says: of a sequence's
/// rows four neighbours are mla_decode's query tokens. The cache holds the rows of all positions
/// that are seen. Errors: as mla_decode().
Status attend_as_mla_decode(const PrefillLatentAttention& args, int64_t rows, int64_t first,
                            Stream stream, const RowPlaces& places);
/// Bytes of workspace for that, for up to `rows` rows. Its counters are zero before the first use.
Result<size_t> workspace_as_mla_decode(const PrefillLatentAttention& args, int64_t rows,
                                       Stream stream);

}  // namespace weft
