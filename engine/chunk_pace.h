// How many tokens of prompts are fed between two steps of others: as many as let these wait no
// longer than some steps take, found by measuring both.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/matrix.h"

namespace weft {

class ChunkPace {
 public:
  /// Steps' time that a token may take where a chunk is fed before it.
  static constexpr double kMostWait = 2.75;

  /// `most`: a multiple of kKvPage.
  ChunkPace(int64_t most, bool measures) : most_(most), measures_(measures) {}

  /// Tokens: a multiple of kKvPage.
  int64_t chunk() const { return chunk_; }

  /// A step without a chunk has taken so long.
  void stepped(double seconds) {
    constexpr double kNew = 0.2;
    step_ = step_ == 0 ? seconds : (1 - kNew) * step_ + kNew * seconds;
  }
  /// Running sequences have waited so much longer than for a step, because so many tokens were fed.
  void fed(int64_t tokens, double seconds) { adapt(tokens, seconds, (kMostWait - 1) * step_); }
  /// A step that so many tokens were fed in has taken so long.
  void fed_beside(int64_t tokens, double seconds) { adapt(tokens, seconds, kMostWait * step_); }

 private:
  void adapt(int64_t tokens, double seconds, double most) {
    const bool whole = tokens > chunk_ - kKvPage;
    if (!measures_ || !whole || step_ == 0) {
      return;
    }
    const double a_token = seconds / static_cast<double>(chunk_);
    // Tokens do not take as long each where there are few: it comes down at once and goes up by
    // pages.
    if (seconds > most) {
      chunk_ = static_cast<int64_t>(most / a_token) / kKvPage * kKvPage;
    } else if (a_token * static_cast<double>(chunk_ + kKvPage) <= most) {
      chunk_ += kKvPage;
    }
    chunk_ = std::clamp(chunk_, kKvPage, most_);
  }

  const int64_t most_;
  const bool measures_;
  int64_t chunk_ = most_;
  double step_ = 0;  // seconds
};

}  // namespace weft
