#include "engine/draft.h"

#include <algorithm>
#include <bit>

namespace weft {

NgramDrafter::NgramDrafter(int64_t entries)
    : places_(std::bit_floor(static_cast<size_t>(std::max<int64_t>(2, entries)))) {}

size_t NgramDrafter::slot(std::span<const int32_t> key) const {
  uint64_t hash = 0;
  for (const int32_t token : key) {
    hash = (hash + static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash & (places_.size() - 1);
}

std::span<const int32_t> NgramDrafter::draft(std::span<const int32_t> tokens, int64_t most) {
  const auto count = static_cast<int64_t>(tokens.size());
  const auto key_before = [&](int64_t end) {
    return tokens.subspan(static_cast<size_t>(end - kDraftKey), static_cast<size_t>(kDraftKey));
  };
  // The last key is looked up before it takes the place of what was there.
  for (seen_ = std::max(seen_, kDraftKey - 1); seen_ + 1 < count; ++seen_) {
    places_[slot(key_before(seen_ + 1))] = static_cast<int32_t>(seen_ + 1);
  }
  if (count < kDraftKey) {
    return {};
  }
  const std::span<const int32_t> key = key_before(count);
  const int64_t end = places_[slot(key)];
  if (end == 0 || !std::equal(key.begin(), key.end(), key_before(end).begin())) {
    return {};
  }
  return tokens.subspan(static_cast<size_t>(end), static_cast<size_t>(std::min(most, count - end)));
}

void NgramDrafter::reset() {
  std::fill(places_.begin(), places_.end(), 0);
  seen_ = 0;
}

}  // namespace weft
