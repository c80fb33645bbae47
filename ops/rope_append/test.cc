#include <gtest/gtest.h>

#include "ops/harness/test_checks.h"
#include "ops/rope_append/op.h"

namespace weft {
namespace {

TEST(RopeAppend, MatchesTheReference) { trial::expect_right("rope_append"); }

// A quarter turn takes (a, b) to (-b, a), pairing element i with element i + head_dim / 2.
TEST(RopeAppend, TurnsHalfSplitPairsAndAppendsAtThePosition) {
  float q[] = {1, 2, 3, 4};
  const float k[] = {5, 6, 7, 8};
  const float v[] = {9, 10, 11, 12};
  const float cosines[] = {0, 1};
  const float sines[] = {1, 0};
  const int32_t positions[] = {1};
  float keys[8] = {};
  float values[8] = {};
  cpu::rope_append({.q = {q, DType::f32, 4},
                    .k = {k, DType::f32, 4},
                    .v = {v, DType::f32, 4},
                    .query_heads = 1,
                    .kv_heads = 1,
                    .head_dim = 4,
                    .positions = positions,
                    .cosines = cosines,
                    .sines = sines,
                    .q_out = {q, DType::f32, 4},
                    .cache = {keys, values, DType::f32, 8}},
                   {0, 1}, {0, 1});
  const float turned_q[] = {-3, 2, 1, 4};
  const float turned_k[] = {-7, 6, 5, 8};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(q[i], turned_q[i]);
    EXPECT_EQ(keys[4 + i], turned_k[i]);
    EXPECT_EQ(values[4 + i], v[i]);
    EXPECT_EQ(keys[i], 0);
    EXPECT_EQ(values[i], 0);
  }
}

TEST(RopeAppend, WithoutACacheTurnsQueriesAlone) {
  const float q[] = {1, 2};
  const float cosines[] = {0};
  const float sines[] = {1};
  const int32_t positions[] = {7};
  float turned[2] = {};
  RopeAppendArgs args;
  args.q = {q, DType::f32, 2};
  args.query_heads = 1;
  args.kv_heads = 1;
  args.head_dim = 2;
  args.positions = positions;
  args.cosines = cosines;
  args.sines = sines;
  args.q_out = {turned, DType::f32, 2};
  cpu::rope_append(args, {0, 1}, {0, 1});
  EXPECT_EQ(turned[0], -2);
  EXPECT_EQ(turned[1], 1);
}

}  // namespace
}  // namespace weft
