// attention of a chunk's rows on AMD: of bf16 queries over a bf16 cache, or of f32 queries in f32
// throughout, on the matrix units.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/attention/op.h"
#include "ops/kernel.h"
#include "ops/row_places.h"

namespace weft::cdna {

inline constexpr int kMostPrefillHeadDim = 256;

/// Why prefill_attention() cannot take such operands; empty: it can. All pointers must be aligned
/// to 16 bytes besides.
std::string_view refuse_prefill_attention(const AttentionArgs& args);

/// Rows [0, rows) of args, at positions first, first + 1, ... (args.positions is not looked at).
/// The cache holds the keys and values of all positions before first + rows; what lies behind them
/// is not read. Errors: device (the launch failed).
Status prefill_attention(const AttentionArgs& args, int64_t rows, int64_t first, Stream stream);

/// Rows of sequences of their own, each over its sequence's keys, its own included, which are in
/// the cache already; operands as prefill_attention() takes them. In bf16, with a workspace of so
/// many bytes as step_attention_workspace() says, keys are split over the device; without one, and
/// otherwise, a workgroup has all of a row and KV head, and a row's bits depend on no other row.
/// Errors: device (the launch failed).
Status step_attention(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                      const Workspace& workspace, Stream stream);
/// For any number of rows. Its counters are zero before the first use.
size_t step_attention_workspace(const AttentionArgs& args, Stream stream);

}  // namespace weft::cdna
