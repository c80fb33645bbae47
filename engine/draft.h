// Drafts without a second model: what followed the last time that the same few tokens stood in the
// prompt or in what was said (prompt lookup, Saxena 2023). Whoever asks verifies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft {

/// Tokens that must have been seen together for a draft.
inline constexpr int64_t kDraftKey = 3;

class NgramDrafter {
 public:
  /// Remembers at most `entries` places (rounded down to a power of two, at least 2), the latest
  /// ones: 4 bytes each.
  explicit NgramDrafter(int64_t entries);

  /// Up to `most` tokens that may follow `tokens`, which begins with all that was given before
  /// unless reset() came between. The span is a part of `tokens`.
  std::span<const int32_t> draft(std::span<const int32_t> tokens, int64_t most);
  void reset();

 private:
  size_t slot(std::span<const int32_t> key) const;

  std::vector<int32_t> places_;  // [hash of kDraftKey tokens]: where they end; 0: nowhere
  int64_t seen_ = 0;             // tokens whose places are known
};

}  // namespace weft
