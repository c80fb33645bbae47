#include <gtest/gtest.h>

#include "ops/embed/op.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(Embed, MatchesTheReference) { trial::expect_right("embed"); }

TEST(Embed, ScalesTheRowOfEachToken) {
  const float table[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  const int32_t tokens[] = {2, 0};
  float out[2][2];
  cpu::embed({.table = {table, DType::f32, 2},
              .tokens = tokens,
              .columns = 2,
              .scale = 10,
              .out = {out, DType::f32, 2},
              .copy = {}},
             {0, 2});
  EXPECT_EQ(out[0][0], 50);
  EXPECT_EQ(out[0][1], 60);
  EXPECT_EQ(out[1][0], 10);
  EXPECT_EQ(out[1][1], 20);
}

}  // namespace
}  // namespace weft
