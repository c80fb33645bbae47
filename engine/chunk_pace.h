// How many tokens of prompts are fed between two steps of others: as many as let these wait no
// longer than some steps take, found by measuring both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/matrix.h"

namespace weft {

class ChunkPace {
 public:
  /// Steps' time that a token may take where a chunk is fed before it.
  static constexpr double kMostWait = 2.75;

  /// `most`: a multiple of kKvPage.
  ChunkPace(int64_t most, bool measures)
      : most_(most),
        measures_(measures),
        chunk_(most),
        seconds_(static_cast<size_t>(most / kKvPage) + 1) {}

  /// Tokens: a multiple of kKvPage.
  int64_t chunk() const { return chunk_; }
  /// As many as are ever fed at once, for when it is few who wait for them.
  int64_t most() const { return most_; }

  /// A step without a chunk has taken so long.
  void stepped(double seconds) {
    constexpr double kNew = 0.2;
    step_ = step_ == 0 ? seconds : (1 - kNew) * step_ + kNew * seconds;
  }
  /// Running sequences have waited so much longer than for a step, because so many tokens were fed.
  void fed(int64_t tokens, double seconds) { adapt(tokens, seconds, (kMostWait - 1) * step_); }
  /// A step that tokens were fed in, of so many rows in all, has taken so long: chunk() are rows of
  /// such steps then.
  void fed_beside(int64_t rows, double seconds) { adapt(rows, seconds, kMostWait * step_); }

 private:
  // What one slow chunk adds at most to what is known of its size, and what is forgotten of larger
  // ones with each chunk, so that they are tried again now and then.
  static constexpr double kRise = 1.1;
  static constexpr double kForget = 0.995;

  double& seconds_of(int64_t tokens) { return seconds_[static_cast<size_t>(tokens / kKvPage)]; }

  void adapt(int64_t tokens, double seconds, double most) {
    const bool whole = tokens > chunk_ - kKvPage && tokens <= chunk_;
    if (!measures_ || !whole || step_ == 0) {
      return;
    }
    double& known = seconds_of(chunk_);
    known = known == 0 ? seconds : std::min(seconds, kRise * known);
    for (int64_t larger = chunk_ + kKvPage; larger <= most_; larger += kKvPage) {
      seconds_of(larger) *= kForget;
    }
    if (known <= most) {
      const int64_t next = chunk_ + kKvPage;
      chunk_ = next <= most_ && seconds_of(next) <= most ? next : chunk_;
      return;
    }
    // Of a smaller one that was never fed a part of the time is expected; it may take more.
    const double a_token = known / static_cast<double>(chunk_);
    const auto fits = [&](int64_t smaller) {
      const double its = seconds_of(smaller);
      return (its == 0 ? a_token * static_cast<double>(smaller) : its) <= most;
    };
    do {
      chunk_ -= kKvPage;
    } while (chunk_ > kKvPage && !fits(chunk_));
    chunk_ = std::max(chunk_, kKvPage);
  }

  const int64_t most_;
  const bool measures_;
  int64_t chunk_;
  double step_ = 0;              // seconds
  std::vector<double> seconds_;  // of a chunk, by pages; 0: not known
};

}  // namespace weft
