#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/swiglu_quant/op.h"

namespace weft {
namespace {

TEST(SwigluQuant, MatchesTheReference) { trial::expect_right("swiglu_quant"); }

TEST(SwigluQuant, ZerosHaveAScale) {
  alignas(16) static const f16 gate_up[16] = {};
  alignas(16) e4m3fnuz out[16];
  float scale = 0;
  const SwigluQuantArgs args{
      .rows = 1,
      .columns = 8,
      .gate = {gate_up, DType::f16, 16},
      .up = {gate_up + 8, DType::f16, 16},
      .y = {.out = {out, DType::e4m3fnuz, 16}, .scaling = Scaling::block, .scales = {&scale, 1, 1}},
      .workspace = {}};
  ASSERT_TRUE(swiglu_quant(args, {}).ok());
  EXPECT_GT(scale, 0);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i].bits, 0);
  }
}

}  // namespace
}  // namespace weft
