#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/divide.h"
#include "base/relative_difference.h"
#include "base/splitmix.h"

namespace weft {
namespace {

TEST(Divide, RoundsUp) {
  for (int64_t a = 0; a < 50; ++a) {
    for (int b = 1; b < 12; ++b) {
      EXPECT_GE(ceil_div(a, b) * b, a);
      EXPECT_LT(ceil_div(a, b) * b, a + b);
      EXPECT_EQ(round_up(a, b), ceil_div(a, b) * b);
    }
  }
  EXPECT_EQ(round_up(int64_t{1} << 40, 256), int64_t{1} << 40);
  EXPECT_EQ(round_up((int64_t{1} << 40) + 1, 256), (int64_t{1} << 40) + 256);
}

/// The first numbers of the published generator from seed 1234567 (rosettacode.org, "Pseudo-random
/// numbers/Splitmix64").
TEST(SplitMix, GivesThePublishedNumbers) {
  constexpr std::array<uint64_t, 5> kPublished = {6457827717110365317u, 3203168211198807973u,
                                                  9817491932198370423u, 4593380528125082431u,
                                                  16408922859458223821u};
  uint64_t state = 1234567;
  for (const uint64_t published : kPublished) {
    EXPECT_EQ(splitmix(state += kSplitMixStep), published);
  }
}

TEST(RelativeDifference, IsOfTheExpectedOnesLength) {
  const std::vector<float> expected = {3, 4};
  EXPECT_EQ(relative_difference(expected, expected), 0);
  EXPECT_DOUBLE_EQ(relative_difference(std::vector<float>{3, 4.5F}, expected), 0.1);
  EXPECT_TRUE(std::isnan(relative_difference(std::vector<float>{3}, expected)));
  EXPECT_TRUE(std::isnan(relative_difference(
      std::vector<float>{3, std::numeric_limits<float>::quiet_NaN()}, expected)));
  EXPECT_TRUE(std::isnan(relative_difference(std::vector<float>{0, 0}, std::vector<float>{0, 0})));
}

}  // namespace
}  // namespace weft
