// What mla_prompt takes of a chunk's rows on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide.h"
#include "ops/kernel.h"
#include "ops/mla_prompt/op.h"

namespace weft {

/// Attention of a chunk's rows, keys and values multiplied out: at positions first, first + 1, ...
/// of a sequence (args.positions is not looked at, args.cache has no tables).
struct PrefillLatentPrompt : LatentAttentionArgs {
  int64_t capacity = 0;  ///< rows of the sequence's cache
  Workspace workspace;   ///< of an architecture's prefill_latent_prompt_workspace() bytes
};

/// Bytes of keys and values that are multiplied out at a time, if those of one head are not more:
/// those of some heads at all positions.
inline constexpr int64_t kMultipliedBytes = int64_t{256} << 20;
/// Heads whose keys and values are multiplied out together where `positions` are seen.
inline int64_t multiplied_heads(const LatentAttentionArgs& args, int64_t positions) {
  const int64_t each =
      positions * (args.of.unturned + args.of.value) * static_cast<int64_t>(size_of(args.element));
  const int64_t most = std::clamp<int64_t>(kMultipliedBytes / each, 1, args.of.heads);
  return ceil_div(args.of.heads, ceil_div(args.of.heads, most));  // evenly
}

}  // namespace weft
