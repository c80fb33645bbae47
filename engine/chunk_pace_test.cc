#include "engine/chunk_pace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace weft {
namespace {

// As Llama-3.1-8B on an H200, about: reading the weights, and arithmetic.
double seconds_of(int64_t tokens) { return 3.5e-3 + 1.75e-5 * static_cast<double>(tokens); }

constexpr double kStep = 3.7e-3;
constexpr double kMost = (ChunkPace::kMostWait - 1) * kStep;

/// So many chunks, one of them sometimes slow. Returns how many were longer than others may wait
/// for.
int feed(ChunkPace& pace, int chunks, double step) {
  int longer = 0;
  for (int i = 0; i < chunks; ++i) {
    pace.stepped(step);
    const double seconds = seconds_of(pace.chunk());
    longer += seconds > (ChunkPace::kMostWait - 1) * step ? 1 : 0;
    pace.fed(pace.chunk(), i % 40 == 39 ? 3 * seconds : seconds);
  }
  return longer;
}

TEST(ChunkPace, FindsTheLargestChunkThatOthersMayWaitFor) {
  ChunkPace pace(512, true);
  EXPECT_EQ(pace.chunk(), 512);
  feed(pace, 20, kStep);
  EXPECT_LE(feed(pace, 400, kStep), 400 / 8);
  std::map<int64_t, int> times;
  for (int i = 0; i < 100; ++i) {
    feed(pace, 1, kStep);
    ++times[pace.chunk()];
  }
  const int64_t often =
      std::ranges::max_element(times, {}, [](auto& each) { return each.second; })->first;
  EXPECT_LE(seconds_of(often), kMost);
  EXPECT_GT(seconds_of(often + kKvPage), kMost);
  // Steps that take longer, of more sequences or longer ones, let more be fed.
  feed(pace, 100, 4 * kStep);
  EXPECT_EQ(pace.chunk(), 512);
}

TEST(ChunkPace, StaysWithinItsBounds) {
  ChunkPace pace(256, true);
  pace.fed(256, 100);  // no step to compare it with
  EXPECT_EQ(pace.chunk(), 256);
  pace.stepped(1e-3);
  pace.fed(40, 100);  // part of a chunk says little
  EXPECT_EQ(pace.chunk(), 256);
  pace.fed(256, 100);
  EXPECT_EQ(pace.chunk(), kKvPage);
  ChunkPace fixed(256, false);
  fixed.stepped(1e-3);
  fixed.fed(256, 100);
  EXPECT_EQ(fixed.chunk(), 256);
}

}  // namespace
}  // namespace weft
