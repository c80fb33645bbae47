#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/layernorm/op.h"

namespace weft {
namespace {

TEST(LayerNorm, MatchesTheReference) { trial::expect_right("layernorm"); }

TEST(LayerNorm, TakesTheMeanAwayInPlace) {
  float x[] = {3, 5, 10};
  const float weight[] = {1, 2, 1};
  const float bias[] = {0, 1, -1};
  cpu::layernorm({.x = {x, DType::f32, 3},
                  .weight = {weight, DType::f32},
                  .bias = {bias, DType::f32},
                  .columns = 3,
                  .epsilon = 0,
                  .out = {x, DType::f32, 3}},
                 {0, 1});
  const double deviation = std::sqrt((9.0 + 1 + 16) / 3);
  EXPECT_NEAR(x[0], -3 / deviation, 1e-6);
  EXPECT_NEAR(x[1], -2 / deviation + 1, 1e-6);
  EXPECT_NEAR(x[2], 4 / deviation - 1, 1e-6);
}

// A mean a thousand times the deviation would leave nothing of a variance that is taken as the mean
// of squares less the square of the mean.
TEST(LayerNorm, KeepsTheVarianceUnderALargeMean) {
  float x[64];
  float weight[64];
  const float bias[64] = {};
  for (int i = 0; i < 64; ++i) {
    x[i] = 4096.0f + (i % 2 == 0 ? 0.5f : -0.5f);
    weight[i] = 1;
  }
  float out[64];
  cpu::layernorm({.x = {x, DType::f32, 64},
                  .weight = {weight, DType::f32},
                  .bias = {bias, DType::f32},
                  .columns = 64,
                  .epsilon = 0,
                  .out = {out, DType::f32, 64}},
                 {0, 1});
  for (int i = 0; i < 64; ++i) {
    EXPECT_NEAR(out[i], i % 2 == 0 ? 1 : -1, 1e-5);
  }
}

TEST(LayerNorm, RefusesWhatADeviceCannotRead) {
  float row[12] = {};
  LayerNormArgs args{.rows = 1,
                     .x = {row, DType::f32, 12},
                     .weight = {row, DType::f32},
                     .bias = {row, DType::f32},
                     .columns = 12,
                     .epsilon = 1e-5f,
                     .out = {row, DType::f32, 12}};
  EXPECT_EQ(check(args).error().message,
            "layernorm: columns is 12, but must be a multiple of 8, and at least 8");
}

}  // namespace
}  // namespace weft
