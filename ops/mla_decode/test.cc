#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/fp8.h"
#include "ops/harness/test_checks.h"
#include "ops/mla_decode/op.h"

namespace weft {
namespace {

TEST(MlaDecode, MatchesTheReference) { trial::expect_right("mla_decode"); }

/// One head, one query token, a few keys in one piece.
struct Tiny {
  explicit Tiny(int64_t keys)
      : q(kLatentRow), rows(static_cast<size_t>(keys * kLatentRow)), out(kLatentRank) {
    args.batch = 1;
    args.tokens = 1;
    args.heads = 1;
    args.q = {q.data(), DType::bf16, kLatentRow};
    args.cache = {.rows = rows.data(), .blocks = 1, .block_rows = keys, .block_stride = keys};
    args.lengths = &length;
    args.out = {out.data(), DType::f32, kLatentRank};
    args.sums = &sum;
    length = static_cast<int32_t>(keys);
  }
  void run() {
    std::vector<std::byte> scratch(cpu::mla_decode_scratch_bytes(args));
    cpu::mla_decode(args, {0, 1}, {0, 1}, scratch);
  }

  std::vector<bf16> q, rows;
  std::vector<float> out;
  int32_t length = 0;
  float sum = 0;
  MlaDecodeArgs args;
};

TEST(MlaDecode, ScoresTheTurnedPartButTakesOnlyTheLatent) {
  Tiny tiny(2);
  tiny.q[kLatentRank] = to_bf16(1);
  tiny.rows[kLatentRank] = to_bf16(std::log(3.0f));  // key 0, turned: exp(score) is about 3
  tiny.rows[5] = to_bf16(8);                         // its latent
  tiny.run();
  const double three = std::exp(to_float(to_bf16(std::log(3.0f))));
  EXPECT_NEAR(tiny.out[5], 8 * three / (three + 1), 1e-5);
  EXPECT_NEAR(tiny.sum, std::log(three + 1), 1e-6);
}

TEST(MlaDecode, OfNoKeysIsZero) {
  Tiny tiny(1);
  tiny.length = 0;
  tiny.out[7] = 3;
  tiny.run();
  EXPECT_EQ(tiny.out[7], 0);
  EXPECT_EQ(tiny.sum, -std::numeric_limits<float>::infinity());
}

TEST(MlaDecode, ARowInFp8IsCodeTimesScaleRounded) {
  std::vector<std::byte> row(kLatentFp8Bytes);
  const float scale = 0.3f;
  std::memcpy(row.data() + kLatentRank + 4, &scale, sizeof(scale));
  row[200] = std::byte{saturate_to<e4m3fn>(7.0f).bits};
  const bf16 turned = to_bf16(-2.5f);
  std::memcpy(row.data() + kLatentFp8Bytes - 2, &turned, sizeof(turned));
  const LatentCache cache{.rows = row.data(), .dtype = DType::e4m3fn, .blocks = 1};
  EXPECT_EQ(reference::latent_element(cache, 0, 200), to_float(to_bf16(7.0f * 0.3f)));
  EXPECT_EQ(reference::latent_element(cache, 0, kLatentRow - 1), -2.5);
  EXPECT_EQ(reference::latent_element(cache, 0, 100), 0);
}

TEST(MlaDecode, QueryTokensSeeTheKeysBeforeThem) {
  EXPECT_EQ(latent_keys(10, 4, 0), 7);
  EXPECT_EQ(latent_keys(10, 4, 3), 10);
  EXPECT_EQ(latent_keys(1, 4, 2), 0);
}

TEST(MlaDecode, RefusesWhatADeviceCannotRead) {
  Tiny tiny(2);
  tiny.args.heads = 129;
  EXPECT_EQ(check(tiny.args).error().message, "mla_decode: heads is 129, but must be at most 128");
  tiny.args.heads = 1;
  const int32_t table[] = {0};
  tiny.args.cache.tables = table;
  EXPECT_EQ(check(tiny.args).error().message, "mla_decode: pages have 2 rows, but must have 64");
  tiny.args.cache.tables = nullptr;
  tiny.args.cache.dtype = DType::e4m3fn;
  tiny.args.cache.angles = tiny.rows.data();
  EXPECT_EQ(check(tiny.args).error().message,
            "mla_decode: cache (with angles) is F8_E4M3, but must be BF16");
  tiny.args.cache.dtype = DType::bf16;
  tiny.args.cache.angles = nullptr;
  tiny.args.lengths = nullptr;
  EXPECT_EQ(check(tiny.args).error().message,
            "mla_decode: lengths is null, but must say how many keys each sequence has");
}

}  // namespace
}  // namespace weft
