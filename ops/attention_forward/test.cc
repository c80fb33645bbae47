#include "ops/attention_forward/op.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(AttentionForward, MatchesTheReference) { trial::expect_right("attention_forward"); }

// Two tokens whose scores are known: the first sees itself alone where attention is causal.
TEST(AttentionForward, OfTwoTokens) {
  std::vector<bf16> q(16), k(16), v(16);
  q[8] = to_bf16(1);  // token 1's query meets token 1's key
  k[8] = to_bf16(2);
  v[0] = to_bf16(1);
  v[8] = to_bf16(3);
  for (const bool causal : {true, false}) {
    std::vector<float> out(16), lse(2);
    const AttentionForwardArgs args{.shape = {.sequences = 1,
                                              .tokens = 2,
                                              .query_heads = 1,
                                              .kv_heads = 1,
                                              .head_dim = 8,
                                              .causal = causal,
                                              .scale = 0.5f},
                                    .q = {q.data(), DType::bf16, 8},
                                    .k = {k.data(), DType::bf16, 8},
                                    .v = {v.data(), DType::bf16, 8},
                                    .out = {out.data(), DType::f32, 8},
                                    .lse = lse.data()};
    std::vector<std::byte> scratch(cpu::attention_forward_scratch_bytes(args));
    cpu::attention_forward(args, {0, 1}, scratch);
    const double e = std::exp(1.0);  // 0.5 * 1 * 2
    EXPECT_NEAR(out[0], causal ? 1 : 2, 1e-6);
    EXPECT_NEAR(lse[0], causal ? 0 : std::log(2.0), 1e-6);
    EXPECT_NEAR(out[8], (1 + 3 * e) / (1 + e), 1e-6);
    EXPECT_NEAR(lse[1], std::log(1 + e), 1e-6);
  }
}

TEST(AttentionForward, RefusesHeadsThatDoNotDivide) {
  AttentionForwardArgs args;
  args.shape = {.sequences = 1, .tokens = 4, .query_heads = 5, .kv_heads = 2, .head_dim = 64};
  EXPECT_EQ(check(args).error().message,
            "attention_forward: query_heads is 5, but must be a multiple of 2, and at least 2");
}

}  // namespace
}  // namespace weft
