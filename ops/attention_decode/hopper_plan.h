// How attention_decode is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "base/divide.h"
#include "ops/attention_decode/op.h"

namespace weft::hopper {

inline constexpr int kDecodeRows = 16;  ///< query heads of a KV head times tokens, of a job
inline constexpr int kDecodeKeys = 32;  ///< of a stage

/// Tiles of rows that a KV head's queries make.
constexpr int decode_row_tiles(const AttentionDecodeArgs& args) {
  return static_cast<int>(
      ceil_div(args.query_heads / args.kv_heads * args.tokens, int64_t{kDecodeRows}));
}
/// Columns of a head, filled up to whole shared tiles.
constexpr int decode_columns(int64_t head_dim) {
  return static_cast<int>(round_up(head_dim, int64_t{64}));
}
inline constexpr int kDecodeWarps = 8;  ///< that multiply
/// Stages that fit a block beside what else it keeps. Those of a slot are one warp's: copies land
/// in any order, so who had another slot before could take a phase that is still to come for one
/// that has ended.
constexpr int decode_stages(int columns) {
  const int stages = (180 << 10) / (kDecodeKeys * columns * 4);
  return stages < kDecodeWarps       ? stages
         : stages < 2 * kDecodeWarps ? kDecodeWarps
                                     : 2 * kDecodeWarps;
}

/// "mma": `splits` blocks share the keys of all jobs, a job a sequence's KV head and tile of rows;
/// or as many clusters have whole jobs.
Plan plan_attention_decode(const AttentionDecodeArgs& args, const DeviceInfo& device);
std::vector<Plan> attention_decode_candidates(const AttentionDecodeArgs& args,
                                              const DeviceInfo& device);

}  // namespace weft::hopper
