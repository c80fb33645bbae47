#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/rmsnorm/op.h"

namespace weft {
namespace {

TEST(RmsNorm, MatchesTheReference) { trial::expect_right("rmsnorm"); }

TEST(RmsNorm, NormalisesInPlace) {
  float x[] = {3, 4};
  const float weight[] = {1, 2};
  cpu::rmsnorm({.x = {x, DType::f32, 2},
                .weight = {weight, DType::f32},
                .columns = 2,
                .epsilon = 0,
                .residual = {},
                .out = {x, DType::f32, 2}},
               {0, 1});
  EXPECT_NEAR(x[0], 3 / std::sqrt(12.5), 1e-6);
  EXPECT_NEAR(x[1], 8 / std::sqrt(12.5), 1e-6);
}

TEST(RmsNorm, ZerosStayZeros) {
  const float x[16] = {};
  const float weight[16] = {1, 1, 1};
  float out[16];
  cpu::rmsnorm({.x = {x, DType::f32, 16},
                .weight = {weight, DType::f32},
                .columns = 16,
                .residual = {},
                .out = {out, DType::f32, 16}},
               {0, 1});
  for (const float y : out) {
    EXPECT_EQ(y, 0);
  }
}

}  // namespace
}  // namespace weft
