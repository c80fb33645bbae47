#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/rope_angles/op.h"

namespace weft {
namespace {

TEST(RopeAngles, MatchesTheReference) { trial::expect_right("rope_angles"); }

// At position 131071 and frequency 1, a rounded angle in f32 sines would be off in the third digit.
TEST(RopeAngles, KeepsItsPrecisionAtLongContexts) {
  const int32_t positions[] = {131071};
  const float frequencies[] = {1, 0.1f};
  float cosines[2];
  float sines[2];
  cpu::rope_angles({.positions = positions,
                    .inverse_frequencies = frequencies,
                    .half = 2,
                    .cosines = cosines,
                    .sines = sines},
                   {0, 1});
  EXPECT_FLOAT_EQ(cosines[0], static_cast<float>(std::cos(131071.0)));
  EXPECT_FLOAT_EQ(sines[0], static_cast<float>(std::sin(131071.0)));
  const float angle = 131071.0f * 0.1f;  // the product rounds, by definition
  EXPECT_FLOAT_EQ(sines[1], static_cast<float>(std::sin(static_cast<double>(angle))));
}

}  // namespace
}  // namespace weft
