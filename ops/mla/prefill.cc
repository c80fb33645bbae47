#include "ops/mla/prefill.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/mla_decode/op.h"

namespace weft {
namespace {

/// `batch` runs of `tokens` rows, the first of them at position `first`.
MlaDecodeArgs run_of(const PrefillLatentAttention& args, int64_t row, int64_t first, int64_t batch,
                     int64_t tokens) {
  MlaDecodeArgs run{.batch = batch,
                    .tokens = tokens,
                    .heads = args.heads,
                    .q = args.q,
                    .cache = {.rows = args.cache.keys,
                              .blocks = 1,
                              .block_rows = args.capacity,
                              .block_stride = args.capacity},
                    .more = first + tokens,
                    .run = true,
                    .alone = args.alone,
                    .scale = args.scale,
                    .out = args.out,
                    .workspace = args.workspace};
  run.q.data = static_cast<const uint16_t*>(args.q.data) + row * args.q.stride;
  run.out.data = static_cast<float*>(args.out.data) + row * args.out.stride;
  return run;
}

}  // namespace

std::string_view refuse_latents(const LatentAppendArgs& args) {
  return args.rank % 2 != 0 || args.turned % 2 != 0 || args.x.stride % 2 != 0
             ? "rank, what turns, and rows must be even"
             : "";
}
std::string_view refuse_latents(const LatentQueriesArgs& args) {
  return args.q.stride % 4 != 0 ? "rows must be multiples of 4" : "";
}
std::string_view refuse_latents(const LatentValuesArgs& args) {
  return args.a.stride % 4 != 0 || args.pitch % 4 != 0 ? "rows must be multiples of 4" : "";
}
std::string_view refuse_latents(const PrefillLatentAttention& args) {
  return args.rank % 4 != 0 || args.turned % 4 != 0 || args.rank > kMostLatentRank ||
                 args.rank + args.turned > kMostLatentRow
             ? "latent rows must be of up to 512 + 64 elements, multiples of 4"
             : "";
}

bool is_mla_decode(const PrefillLatentAttention& args) {
  return args.q.dtype == DType::bf16 && args.cache.dtype == DType::bf16 &&
         args.rank == kLatentRank && args.turned == kLatentTurned && args.heads <= kLatentHeads;
}

Status attend_as_mla_decode(const PrefillLatentAttention& args, int64_t rows, int64_t first,
                            Stream stream, const RowPlaces& places) {
  if (places.positions != nullptr) {
    MlaDecodeArgs step = run_of(args, 0, 0, rows, 1);
    step.cache.blocks = args.sequences;
    step.cache.owners = places.sequences;
    step.lengths = places.positions;
    step.run = false;
    return mla_decode(step, stream);
  }
  // Groups begin at multiples of four positions, so that who is in a row's group, which decides
  // what it is summed with, does not depend on where a chunk begins.
  for (int64_t row = 0; row < rows;) {
    const int64_t position = first + row;
    const int64_t left = rows - row;
    const int64_t whole = left / kLatentTokens;
    const int64_t lone = std::min(left, kLatentTokens - position % kLatentTokens);
    const bool groups = lone == kLatentTokens;
    WEFT_TRY(mla_decode(
        run_of(args, row, position, groups ? whole : 1, groups ? kLatentTokens : lone), stream));
    row += groups ? whole * kLatentTokens : lone;
  }
  return {};
}

Result<size_t> workspace_as_mla_decode(const PrefillLatentAttention& args, int64_t rows,
                                       Stream stream) {
  // Of a step, and of a run.
  MlaDecodeArgs step = run_of(args, 0, 0, std::min(rows, kLatentSequences), 1);
  size_t most = 0;
  for (const bool run : {false, true}) {
    for (int64_t tokens = 1; tokens <= kLatentTokens; ++tokens) {
      for (int64_t batch = 1; batch <= ceil_div(rows, tokens); batch *= 2) {
        step.batch = batch;
        step.tokens = tokens;
        step.run = run;
        step.lengths = run ? nullptr : static_cast<const int32_t*>(args.q.data);  // any
        step.cache.owners = step.lengths;
        WEFT_ASSIGN(const size_t bytes, mla_decode_workspace(step, stream));
        most = std::max(most, bytes);
      }
    }
  }
  return most;
}

}  // namespace weft
