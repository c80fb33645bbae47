#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/rmsnorm_quant/op.h"

namespace weft {
namespace {

TEST(RmsNormQuant, MatchesTheReference) { trial::expect_right("rmsnorm_quant"); }

TEST(RmsNormQuant, AddsNormalisesAndScales) {
  alignas(16) bf16 x[8];
  alignas(16) bf16 residual[8];
  alignas(16) bf16 weight[8];
  for (int i = 0; i < 8; ++i) {
    x[i] = to_bf16(1);
    residual[i] = to_bf16(i == 0 ? 3 : -1);  // the sum is 4 and seven zeros: rms sqrt(2)
    weight[i] = to_bf16(2);
  }
  alignas(16) e4m3fn out[16];
  float scale = 0;
  const RmsNormQuantArgs args{
      .rows = 1,
      .columns = 8,
      .x = {x, DType::bf16, 8},
      .residual = {residual, DType::bf16, 8},
      .weight = {weight, DType::bf16},
      .epsilon = 0,
      .y = {.out = {out, DType::e4m3fn, 16}, .scaling = Scaling::row, .scales = {&scale, 1, 0}},
      .workspace = {}};
  ASSERT_TRUE(rmsnorm_quant(args, {}).ok());
  EXPECT_EQ(to_float(residual[0]), 4);
  EXPECT_EQ(to_float(residual[1]), 0);
  EXPECT_NEAR(scale, 8 / std::sqrt(2.0) / 448, 1e-7);
  EXPECT_EQ(to_float(out[0]), 448);
  EXPECT_EQ(to_float(out[1]), 0);
}

TEST(RmsNormQuant, RefusesAScaleForSixteenBits) {
  alignas(16) static const bf16 x[8] = {};
  alignas(16) bf16 out[8];
  float scale = 1;
  RmsNormQuantArgs args{
      .rows = 1,
      .columns = 8,
      .x = {x, DType::bf16, 8},
      .residual = {},
      .weight = {x, DType::bf16},
      .y = {.out = {out, DType::bf16, 8}, .scaling = Scaling::tensor, .scales = {&scale, 0, 0}},
      .workspace = {}};
  EXPECT_EQ(check(args).error().message, "rmsnorm_quant: out is BF16, but scaling is tensor");
  args.y.scaling = Scaling::none;
  args.y.scales = {};
  EXPECT_TRUE(check(args).ok());
}

}  // namespace
}  // namespace weft
