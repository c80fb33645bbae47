// Workers that are through with their own tile of a product take what is left of another's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "arch/cpu/streams.h"
#include "base/range.h"

namespace weft {

/// The steps of one worker's tile: it takes them from the front, others may take from the back.
/// Tiles are told apart by a tag, one after the other; a tile's last step is over before its owner
/// opens the next.
class SharedSteps {
 public:
  static constexpr int64_t kMostSteps = (1 << 24) - 1;
  static constexpr int64_t kMostTags = 1 << 16;  ///< 0 is none's

  void reset() { state_.store(0, std::memory_order_relaxed); }
  /// Owner: steps [0, steps) can be taken from now on.
  void open(int64_t tag, int64_t steps) {
    left_.store(steps + 1, std::memory_order_relaxed);
    state_.store(pack(tag, {0, steps}), std::memory_order_release);
  }
  /// Owner: the next half of what is left, or `grain` steps. Seldom, because taking waits until all
  /// loads before it are over.
  Range take_front(int64_t grain) {
    uint64_t state = state_.load(std::memory_order_relaxed);
    for (;;) {
      const Range open = range_of(state);
      const int64_t count = std::max(grain, open.size() / 2);
      const Range taken{open.begin, std::min(open.begin + count, open.end)};
      if (taken.empty() || exchange(state, {taken.end, open.end})) {
        return taken;
      }
    }
  }
  /// Others: the back half of what is left, if the tile is `tag`'s.
  Range take_back(int64_t tag) {
    uint64_t state = state_.load(std::memory_order_acquire);
    for (;;) {
      const Range open = range_of(state);
      const Range taken{open.end - open.size() / 2, open.end};
      if (tag_of(state) != tag || taken.empty()) {
        return {};
      }
      if (exchange(state, {open.begin, taken.begin})) {
        return taken;
      }
    }
  }
  /// `steps` of those taken are computed; the owner counts one more when it is through. True: these
  /// were the last, and all results are there to be announced.
  bool finish(int64_t steps) { return left_.fetch_sub(steps, std::memory_order_acq_rel) == steps; }

 private:
  static uint64_t pack(int64_t tag, Range range) {
    return static_cast<uint64_t>(tag) << 48 | static_cast<uint64_t>(range.begin) << 24 |
           static_cast<uint64_t>(range.end);
  }
  static int64_t tag_of(uint64_t state) { return static_cast<int64_t>(state >> 48); }
  static Range range_of(uint64_t state) {
    return {static_cast<int64_t>(state >> 24 & kMostSteps),
            static_cast<int64_t>(state & kMostSteps)};
  }
  bool exchange(uint64_t& state, Range left) {
    return state_.compare_exchange_weak(state, pack(tag_of(state), left), std::memory_order_acq_rel,
                                        std::memory_order_acquire);
  }

  std::atomic<uint64_t> state_{0};  // tag, first and end of the steps that nobody has taken
  std::atomic<int64_t> left_{0};    // steps not computed yet
};

/// The owner's part of a tile.
class OwnSteps : public cpu::StreamSteps {
 public:
  OwnSteps(SharedSteps& tile, int64_t tag) : tile_(tile), tag_(tag) {}
  Range next(int64_t steps, int64_t grain) override {
    if (!open_) {
      tile_.open(tag_, steps);
      open_ = true;
    }
    const Range range = tile_.take_front(grain);
    taken_ += range.size();
    return range;
  }
  bool rest() const override { return true; }
  /// After the product. True: all of the tile is computed.
  bool finish() { return tile_.finish(taken_ + 1); }

 private:
  SharedSteps& tile_;
  int64_t tag_;
  int64_t taken_ = 0;
  bool open_ = false;
};

/// Steps taken from another worker's tile.
class TakenSteps : public cpu::StreamSteps {
 public:
  explicit TakenSteps(Range steps) : steps_(steps) {}
  Range next(int64_t /*steps*/, int64_t /*grain*/) override {
    return std::exchange(steps_, Range{});
  }
  bool rest() const override { return false; }

 private:
  Range steps_;
};

}  // namespace weft
