#include "engine/chunk_pace.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

// As Llama-3.1-8B on an H200, about: reading the weights, and arithmetic.
double seconds_of(int64_t tokens) { return 3.5e-3 + 1.75e-5 * static_cast<double>(tokens); }

TEST(ChunkPace, FindsTheLargestChunkThatOthersMayWaitFor) {
  constexpr double kStep = 3.7e-3;
  ChunkPace pace(512, true);
  EXPECT_EQ(pace.chunk(), 512);
  for (int i = 0; i < 20; ++i) {
    pace.stepped(kStep);
    pace.fed(pace.chunk(), seconds_of(pace.chunk()));
  }
  const double most = (ChunkPace::kMostWait - 1) * kStep;
  EXPECT_LE(seconds_of(pace.chunk()), most);
  EXPECT_GT(seconds_of(pace.chunk() + 2 * kKvPage), most);
  // Steps that take longer, of more sequences or longer ones, let more be fed.
  for (int i = 0; i < 100; ++i) {
    pace.stepped(4 * kStep);
    pace.fed(pace.chunk(), seconds_of(pace.chunk()));
  }
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
