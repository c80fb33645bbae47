#include <gtest/gtest.h>

#include <cmath>

#include "ops/harness/test_checks.h"
#include "ops/token_logprob/op.h"

namespace weft {
namespace {

TEST(TokenLogprob, MatchesTheReference) { trial::expect_right("token_logprob"); }

TEST(TokenLogprob, SharesSumToOne) {
  const float logits[2][3] = {{1000, 1000, 1000}, {0, std::log(2.0f), -INFINITY}};
  const int32_t tokens[] = {1, 1};
  float out[2];
  cpu::token_logprob(
      {.logits = {logits, DType::f32, 3}, .tokens = tokens, .columns = 3, .out = out}, {0, 2});
  EXPECT_NEAR(out[0], -std::log(3.0), 1e-6);
  EXPECT_NEAR(out[1], std::log(2.0 / 3), 1e-6);
}

// Two hundred thousand terms, each hardly a unit of what f32 keeps of their sum, where they would
// be 1e-3 off; a lane adds up 16 at a time.
TEST(TokenLogprob, KeepsTheSumOfManySmallTerms) {
  std::vector<float> logits(200000, -16.0f);
  logits[0] = 0;
  const int32_t token = 0;
  float out = 0;
  cpu::token_logprob({.logits = {logits.data(), DType::f32, 200000},
                      .tokens = &token,
                      .columns = 200000,
                      .out = &out},
                     {0, 1});
  EXPECT_NEAR(out, -std::log1p(199999 * std::exp(-16.0)), 16 * 0x1p-24);
}

}  // namespace
}  // namespace weft
