// How resident kernels cut the keys that a query sees (their split_keys()), for who foretells what
// they do.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide.h"
#include "engine/resident/code.h"

namespace weft::resident {

/// Blocks of keys that a split has at least, before all splits are in use.
inline constexpr int64_t kFewestBlocks = 2;
inline constexpr int64_t kFewestLatentBlocks = 1;

/// The keys of a split, first .. last - 1, of a query at `position`; `active`: splits that have
/// any.
struct SplitKeys {
  int64_t first = 0, last = 0, active = 0;

  SplitKeys(const Splits& splits, int64_t position, int64_t split, int64_t fewest = kFewestBlocks) {
    constexpr int64_t kBlock = 64;
    const int64_t end = position + 1;
    const int64_t begin = splits.window > 0 ? std::max<int64_t>(0, end - splits.window) : 0;
    const int64_t block = begin / kBlock;
    const int64_t blocks = ceil_div(end, kBlock) - block;
    active = std::min<int64_t>(splits.count, ceil_div(blocks, fewest));
    const int64_t each = blocks / active;
    const int64_t more = blocks % active;
    const int64_t before = block + split * each + std::min(split, more);
    first = std::max(begin, before * kBlock);
    last = std::min(end, (before + each + (split < more ? 1 : 0)) * kBlock);
  }
};

}  // namespace weft::resident
