// mla_prompt of a chunk's rows on Hopper: keys and values multiplied out, queries turned,
// attention.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "arch/device.h"
#include "ops/attention/hopper_prefill.h"
#include "ops/mla_prompt/prefill.h"

namespace weft::hopper {

/// Why prefill_latent_prompt() cannot take such operands; empty: it can. Looks at sizes and formats
/// alone: all pointers must be aligned to 16 bytes besides.
inline std::string_view refuse_prefill_latent_prompt(const LatentAttentionArgs& args) {
  const LatentHeads& of = args.of;
  const bool bf16 = args.element == DType::bf16;
  if (args.cache.dtype != args.element || (bf16 && of.w.dtype != DType::bf16) ||
      is_fp8(of.w.dtype)) {
    return "queries, latent rows and weights are not of one format";
  }
  for (const int64_t size : {of.rank, of.unturned, of.turned, of.value}) {
    if (size % 8 != 0) {
      return "parts of rows and heads are no multiples of 8";
    }
  }
  if (std::max(of.unturned + of.turned, of.value) > kMostPrefillHeadDim) {
    return "heads are of more than 256";
  }
  if (bf16 && (of.unturned % 64 != 0 || of.turned > 64)) {
    return "RoPE leaves no multiple of 64 elements of a head, or turns more than 64";
  }
  return {};
}
/// Products with the weights of all positions before first + rows, a few heads' at a time, and
/// attention over them: prefill_attention_over()'s. A row's bits do not depend on how many rows
/// there are, nor on what came in which chunk. The cache holds the rows of all positions that are
/// seen. Errors: device (a launch failed).
Status prefill_latent_prompt(const PrefillLatentPrompt& args, int64_t rows, int64_t first,
                             Stream stream);
/// Bytes of workspace, for up to `rows` rows anywhere in the cache. Its counters are left alone.
size_t prefill_latent_prompt_workspace(const PrefillLatentPrompt& args, int64_t rows);

}  // namespace weft::hopper
