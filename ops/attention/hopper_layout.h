// What attention of one row on a resident CTA needs (see hopper.cuh).
#pragma once

#include <cstdint>

namespace weft::hopper {

/// Query heads handled in one pass over the keys.
inline constexpr int kHeadsAtOnce = 4;

/// Bytes of shared memory that attention_range() works in, for a team of `warps`.
constexpr int64_t attention_scratch_bytes(int warps, int64_t head_dim) {
  return warps * kHeadsAtOnce * (head_dim + 2) * 4;
}

}  // namespace weft::hopper
