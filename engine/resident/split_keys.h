// How resident kernels cut the keys that a query sees (their split_keys()), for who foretells what
// they do.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/divide.h"
#include "engine/resident/code.h"

namespace weft::resident {

/// What keys are of.
enum class KeysOf : uint8_t { heads, latents };

/// Blocks of keys that a split has at least, of `blocks` in all: with heads 2, from 16 blocks on 3,
/// from 32 on 4, then 6, 8, 12 ... So more keys are cut into more splits and into longer ones: a
/// longer split takes who attends to it longer, another split every reader of the result. Of latent
/// rows a reader takes few heads.
constexpr int blocks_of_split(int blocks, KeysOf keys) {
  const int width = std::bit_width(static_cast<uint32_t>(blocks) | 8);
  return keys == KeysOf::latents ? 1 : (2 + width % 2) << (width - 4) / 2;
}
static_assert(blocks_of_split(15, KeysOf::heads) == 2 && blocks_of_split(16, KeysOf::heads) == 3 &&
              blocks_of_split(32, KeysOf::heads) == 4 && blocks_of_split(64, KeysOf::heads) == 6);

/// The keys of a split, first .. last - 1, of a query at `position`; `active`: splits that have
/// any.
struct SplitKeys {
  int64_t first = 0, last = 0, active = 0;

  SplitKeys(const Splits& splits, int64_t position, int64_t split, KeysOf keys = KeysOf::heads) {
    constexpr int64_t kBlock = 64;
    const int64_t end = position + 1;
    const int64_t begin = splits.window > 0 ? std::max<int64_t>(0, end - splits.window) : 0;
    const int64_t block = begin / kBlock;
    const int64_t blocks = ceil_div(end, kBlock) - block;
    const int of_split = blocks_of_split(static_cast<int>(blocks), keys);
    active = std::min<int64_t>(splits.count, ceil_div(blocks, of_split));
    const int64_t each = blocks / active;
    const int64_t more = blocks % active;
    const int64_t before = block + split * each + std::min(split, more);
    first = std::max(begin, before * kBlock);
    last = std::min(end, (before + each + (split < more ? 1 : 0)) * kBlock);
  }
};

}  // namespace weft::resident
