// attention of a chunk's rows on Hopper: of bf16 queries over a bf16 cache on the tensor cores, of
// f32 queries in f32 throughout.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/attention/op.h"
#include "ops/kernel.h"
#include "ops/row_places.h"

namespace weft::hopper {

inline constexpr int kMostPrefillHeadDim = 256;

/// A row a position, of all heads: `dim` elements of each, `pitch` apart.
struct HeadRows {
  const void* data = nullptr;
  int64_t dim = 0;
  int64_t stride = 0;  ///< elements from a position to the next
  int64_t pitch = 0;   ///< elements from a head to the next
};

/// Keys and values wherever they lie, bf16 or f32.
struct KeyRows {
  HeadRows keys;
  HeadRows shared = {};  ///< what all heads' keys have behind their own elements; dim 0: nothing
  HeadRows values;
  DType dtype = DType::bf16;
};

/// Why prefill_attention() cannot take such operands; empty: it can. All pointers must be aligned
/// to 16 bytes besides.
std::string_view refuse_prefill_attention(const AttentionArgs& args);

/// Rows [0, rows) of args, at positions first, first + 1, ... (args.positions is not looked at).
/// The cache holds the keys and values of all positions before first + rows; what lies behind them
/// is not read. Errors: device (the launch failed).
Status prefill_attention(const AttentionArgs& args, int64_t rows, int64_t first, Stream stream);

/// The same over other rows than args.cache has, which is not looked at: keys of args.head_dim
/// elements in all, values that may be of fewer, results [rows, query_heads * values.dim]. All rows
/// are aligned to 16 bytes. Queries in bf16: what keys have of their own is a multiple of 64 where
/// they share what is behind it, which is of up to 64 elements.
Status prefill_attention_over(const AttentionArgs& args, const KeyRows& cache, int64_t rows,
                              int64_t first, Stream stream);

/// The same where queries are f32: these are what those above call then.
std::string_view refuse_prefill_attention_f32(const AttentionArgs& args);
Status prefill_attention_f32(const AttentionArgs& args, const KeyRows& cache, int64_t rows,
                             int64_t first, Stream stream);

/// Rows of sequences of their own, each over its sequence's keys, its own included, which are in
/// the cache already. Queries and results are bf16 or f32, as refuse_prefill_attention() takes
/// them, and no workspace is wanted. Errors: device (the launch failed).
Status step_attention(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                      const Workspace& workspace, Stream stream);

}  // namespace weft::hopper
