// What attention of one row on a resident CTA needs (see hopper.cuh).
#pragma once

#include <cstdint>

namespace weft::hopper {

/// Query heads handled in one pass over the keys: by mma, and otherwise (f32 caches, heads of more
/// than 128 elements).
inline constexpr int kMmaHeads = 8;
inline constexpr int kHeadsAtOnce = 4;

/// Elements of one warp's part of the result: for each of the heads that it has at once the sums,
/// their maximum and the sum of exponentials.
constexpr int64_t attention_part(int64_t head_dim, int64_t group) {
  const int64_t heads = group < kHeadsAtOnce ? kHeadsAtOnce : group < kMmaHeads ? group : kMmaHeads;
  return heads * (head_dim + 2);
}
/// Bytes of shared memory that attention works in, for a team of `warps`: the queries of a KV
/// head's `group`, its new key and value (as computed and as the cache has them), and each warp's
/// part of the result.
constexpr int64_t attention_scratch_bytes(int64_t warps, int64_t head_dim, int64_t group) {
  return ((group + 4) * head_dim + warps * attention_part(head_dim, group)) * 4;
}

}  // namespace weft::hopper
