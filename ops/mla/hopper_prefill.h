// mla for a chunk's rows on Hopper: latent rows appended, queries into their space, attention, and
// values of what was attended to. Rows in bf16 meet weights and keys on the tensor cores, rows in
// f32 on the CUDA cores.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/mla/op.h"
#include "ops/mla/prefill.h"
#include "ops/row_places.h"

namespace weft::hopper {

/// Why the kernels cannot take such operands; empty: they can. (Others: refuse_latents().) All
/// pointers must be aligned to 16 bytes besides. Weights are no codes; where results are bf16, they
/// are bf16.
std::string_view refuse_prefill_latents(const LatentQueriesArgs& args);
std::string_view refuse_prefill_latents(const LatentValuesArgs& args);

/// Rows [0, rows) of args, at positions first, first + 1, ... or as `places` says (args.positions
/// is not looked at). Errors: device (a launch failed).
Status prefill_latent_append(const LatentAppendArgs& args, int64_t rows, int64_t first,
                             Stream stream, const RowPlaces& places = {});
Status prefill_latent_queries(const LatentQueriesArgs& args, int64_t rows, Stream stream);
Status prefill_latent_values(const LatentValuesArgs& args, int64_t rows, Stream stream);
/// The cache holds the rows of all positions that are seen. What is mla_decode's
/// (is_mla_decode()), it gets.
Status prefill_latent_attention(const PrefillLatentAttention& args, int64_t rows, int64_t first,
                                Stream stream, const RowPlaces& places = {});
/// Bytes of workspace, for up to `rows` rows. Its counters are zero before the first use.
Result<size_t> prefill_latent_workspace(const PrefillLatentAttention& args, int64_t rows,
                                        Stream stream);

}  // namespace weft::hopper
