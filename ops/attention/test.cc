#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/attention/op.h"
#include "ops/harness/tensor.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

using trial::Random;
using trial::Tensor;

TEST(Attention, MatchesTheReference) { trial::expect_right("attention"); }

TEST(Attention, SplitsCoverTheKeysInOrder) {
  for (const int64_t window : {0, 1, 64, 100, 5000}) {
    for (const int64_t position : {0, 1, 63, 64, 65, 1000, 4097}) {
      for (const int64_t splits : {1, 2, 3, 7, 100}) {
        const Range keys = attention_keys(position, window);
        int64_t next = keys.begin;
        for (int64_t s = 0; s < splits; ++s) {
          const Range part = attention_split(position, window, splits, s);
          if (!part.empty()) {
            EXPECT_EQ(part.begin, next);
            next = part.end;
          }
        }
        EXPECT_EQ(next, keys.end) << "position " << position << " window " << window;
      }
    }
  }
}

/// A chunk over a random cache.
struct Chunk {
  Chunk(int64_t rows, int32_t first, DType type, int64_t query_heads = 6, int64_t kv_heads = 2,
        int64_t dim = 48)
      : q("q", Tensor::Role::input, rows, query_heads * dim, type),
        keys("keys", Tensor::Role::input, kv_heads * (first + rows), dim, type),
        values("values", Tensor::Role::input, kv_heads * (first + rows), dim, type),
        out("out", Tensor::Role::output, rows, query_heads * dim, DType::f32),
        positions(static_cast<size_t>(rows)) {
    Random random(5);
    q.fill(random, 1);
    keys.fill(random, 1);
    values.fill(random, 1);
    for (int64_t r = 0; r < rows; ++r) {
      positions[static_cast<size_t>(r)] = first + static_cast<int32_t>(r);
    }
    args.q = q.in();
    args.cache = {keys.data(), values.data(), type, (first + rows) * dim};
    args.query_heads = query_heads;
    args.kv_heads = kv_heads;
    args.head_dim = dim;
    args.positions = positions.data();
    args.scale = 0.15f;
    args.out = out.out();
  }
  void run(Range rows, Range kv_heads) {
    std::vector<std::byte> scratch(cpu::attention_scratch_bytes(args, rows.size()) + 64);
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    cpu::attention(args, rows, kv_heads, 0, std::span(scratch).subspan((64 - address % 64) % 64));
  }
  Tensor q, keys, values, out;
  std::vector<int32_t> positions;
  AttentionArgs args;
};

TEST(Attention, BitsDependOnNoOtherRowOrHead) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int64_t window : {0, 70}) {
      Chunk chunk(90, 37, type);
      chunk.args.window = window;
      chunk.run({0, 90}, {0, 2});
      const auto whole = chunk.out.cells();
      for (const int64_t cut : {5, 11, 22, 64, 85}) {
        chunk.out.restore();
        chunk.run({cut, 90}, {1, 2});
        chunk.run({0, cut}, {0, 1});
        chunk.run({cut, 90}, {0, 1});
        chunk.run({0, cut}, {1, 2});
        EXPECT_EQ(chunk.out.cells(), whole) << name_of(type) << " cut at row " << cut;
      }
    }
  }
}

// Rows do not see later keys, whatever these hold.
TEST(Attention, NothingLeaksFromLaterKeys) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()};
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const int64_t rows : {3, 20}) {
      for (const float bad : kBad) {
        Chunk chunk(rows, 5, type, 2, 1, 16);
        for (int64_t c = 0; c < 16; ++c) {
          chunk.keys.set(5 + rows - 1, c, bad);
          chunk.values.set(5 + rows - 1, c, bad);
        }
        chunk.run({0, rows}, {0, 1});
        for (int64_t c = 0; c < chunk.out.columns(); ++c) {
          EXPECT_TRUE(std::isfinite(chunk.out.get(rows - 2, c)));
          EXPECT_FALSE(std::isfinite(chunk.out.get(rows - 1, c)));
        }
      }
    }
  }
}

// Scores of +-3000 need the running maximum, in blocks that raise it as in blocks that do not.
TEST(Attention, SurvivesLargeScores) {
  for (const int64_t rows : {1, 10}) {
    Chunk chunk(rows, 300, DType::f32, 1, 1, 2);
    chunk.args.scale = 1;
    for (int64_t r = 0; r < chunk.keys.rows(); ++r) {
      chunk.keys.set(r, 0, r == 100 ? 3000.0f : static_cast<float>(-10 * r));
      chunk.keys.set(r, 1, 0);
    }
    for (int64_t r = 0; r < rows; ++r) {
      chunk.q.set(r, 0, 1);
    }
    chunk.run({0, rows}, {0, 1});
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(chunk.out.get(r, 0), chunk.values.get(100, 0));
      EXPECT_EQ(chunk.out.get(r, 1), chunk.values.get(100, 1));
    }
  }
}

}  // namespace
}  // namespace weft
