#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ops/attention_decode/op.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(AttentionDecode, MatchesTheReference) { trial::expect_right("attention_decode"); }

/// One head of 8, one query token, a few keys in one piece, all scores 0.
struct Tiny {
  explicit Tiny(int64_t count)
      : q(kDim),
        keys(static_cast<size_t>(count * kDim)),
        values(static_cast<size_t>(count * kDim)),
        out(kDim),
        length(static_cast<int32_t>(count)) {
    args.batch = args.tokens = args.query_heads = args.kv_heads = 1;
    args.head_dim = kDim;
    args.q = {q.data(), DType::bf16, kDim};
    args.cache = {.keys = keys.data(),
                  .values = values.data(),
                  .blocks = 1,
                  .block_rows = count,
                  .head_stride = count * kDim};
    args.lengths = &length;
    args.out = {out.data(), DType::f32, kDim};
  }
  void run() {
    std::vector<std::byte> scratch(cpu::attention_decode_scratch_bytes(args));
    cpu::attention_decode(args, {0, 1}, {0, 1}, scratch);
  }

  static constexpr int64_t kDim = 8;
  std::vector<bf16> q, keys, values;
  std::vector<float> out;
  int32_t length;
  AttentionDecodeArgs args;
};

TEST(AttentionDecode, ASinkTakesItsShare) {
  Tiny tiny(3);
  for (bf16& x : tiny.values) {
    x = to_bf16(2);
  }
  const float sink = std::log(5.0f);
  tiny.args.sinks = {&sink, DType::f32};
  tiny.run();
  EXPECT_NEAR(tiny.out[3], 2 * 3.0 / 8, 1e-6);
}

TEST(AttentionDecode, AWindowHidesEarlierKeys) {
  Tiny tiny(4);
  for (int64_t i = 0; i < 4; ++i) {
    tiny.values[static_cast<size_t>(i * Tiny::kDim)] = to_bf16(static_cast<float>(1 << (2 * i)));
  }
  tiny.args.window = 2;
  tiny.run();
  EXPECT_NEAR(tiny.out[0], (16 + 64) / 2.0, 1e-5);
}

TEST(AttentionDecode, OfNoKeysIsZero) {
  Tiny tiny(1);
  tiny.length = 0;
  tiny.out[7] = 3;
  tiny.run();
  EXPECT_EQ(tiny.out[7], 0);
}

TEST(AttentionDecode, TellsHowFarScoresAreFromTheUnifiedMaximum) {
  Tiny tiny(2);
  tiny.q[0] = to_bf16(1);
  tiny.keys[0] = to_bf16(70);
  float distance = 0;
  tiny.args.unified = true;
  tiny.args.unified_maximum = -3;
  tiny.args.distances = &distance;
  tiny.run();
  EXPECT_EQ(distance, 73);
  EXPECT_GT(distance, kUnifiedReach);
}

TEST(AttentionDecode, RefusesWhatADeviceCannotRead) {
  Tiny tiny(2);
  tiny.args.head_dim = 264;
  EXPECT_EQ(check(tiny.args).error().message,
            "attention_decode: head_dim is 264, but must be at most 256");
  tiny.args.head_dim = Tiny::kDim;
  tiny.args.query_heads = 3;
  tiny.args.kv_heads = 2;
  EXPECT_EQ(check(tiny.args).error().message,
            "attention_decode: query_heads is 3, but must be a multiple of 2, and at least 2");
  tiny.args.query_heads = tiny.args.kv_heads = 1;
  tiny.args.lengths = nullptr;
  EXPECT_EQ(check(tiny.args).error().message,
            "attention_decode: lengths is null, but must say how many keys each sequence has");
}

}  // namespace
}  // namespace weft
