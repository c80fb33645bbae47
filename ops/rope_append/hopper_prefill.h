// rope_append of a chunk's rows on Hopper.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/rope_append/op.h"
#include "ops/row_places.h"

namespace weft::hopper {

/// Why prefill_rope_append() cannot take such operands; empty: it can. All pointers must be aligned
/// to 16 bytes besides.
std::string_view refuse_prefill_rope_append(const RopeAppendArgs& args);

/// Rows [0, rows) of args, at positions first, first + 1, ... (args.positions is not looked at).
/// Errors: device (the launch failed).
Status prefill_rope_append(const RopeAppendArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places = {});

/// Whether prefill_normed_rope_append() takes such heads, if prefill_rope_append() does: they turn
/// as a whole, and some lanes of a warp have one.
bool norms_heads(const RopeAppendArgs& args);
/// The same of heads that are normed first.
Status prefill_normed_rope_append(const RopeAppendArgs& args, const HeadNorms& norms, int64_t rows,
                                  int64_t first, Stream stream, const RowPlaces& places);

}  // namespace weft::hopper
