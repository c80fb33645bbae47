#include <gtest/gtest.h>

#include "ops/gemm_skinny/op.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(GemmSkinny, MatchesTheReference) { trial::expect_right("gemm_skinny"); }

TEST(GemmSkinny, RefusesWhatItCannotCompute) {
  alignas(16) static uint8_t codes[64 * 128] = {};
  alignas(16) static float out[64 * 8] = {};
  static const float scale[1] = {1};
  const GemmSkinnyArgs good{.m = 2,
                            .n = 8,
                            .k = 128,
                            .a = {codes, DType::e4m3fn, 128},
                            .b = {codes, DType::e4m3fn, 128},
                            .scaling = Scaling::block,
                            .a_scale = {scale, 0, 0},
                            .b_scale = {scale, 0, 0},
                            .out = {out, DType::f32, 8},
                            .workspace = {}};
  EXPECT_TRUE(check(good).ok());
  const auto expect_refused = [](const GemmSkinnyArgs& args, std::string_view says) {
    const Status status = check(args);
    ASSERT_FALSE(status.ok()) << says;
    EXPECT_EQ(status.error().kind, ErrorKind::usage);
    EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
  };
  GemmSkinnyArgs args = good;
  args.m = 33;
  expect_refused(args, "m is 33, but must be at most 32");
  args = good;
  args.k = 64;
  expect_refused(args, "k is 64, but must be a multiple of 128");
  args = good;
  args.b.dtype = DType::e4m3fnuz;
  expect_refused(args, "a is F8_E4M3, but b is F8_E4M3FNUZ");
  args = good;
  args.a_scale.data = nullptr;
  expect_refused(args, "a_scale is null, but scaling is block");
  args = good;
  args.scaling = Scaling::none;
  expect_refused(args, "a is F8_E4M3, but must be BF16");
}

}  // namespace
}  // namespace weft
