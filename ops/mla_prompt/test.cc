#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "ops/harness/test_checks.h"
#include "ops/linear/test_operands.h"
#include "ops/mla/test_heads.h"
#include "ops/mla_prompt/op.h"
#include "ops/mla_prompt/prefill.h"

namespace weft {
namespace {

TEST(MlaPrompt, MatchesTheReference) { trial::expect_right("mla_prompt"); }

/// The last rows of a sequence whose latent rows are there.
class MlaPromptTest : public Products {
 protected:
  static constexpr int64_t kHeads = 3;

  struct Prompt {
    std::vector<int32_t> positions;
    std::vector<float> cosines, sines, q, latents, paged;
    std::vector<bf16> rounded;  ///< latents
    std::vector<int32_t> table;
    std::vector<const int32_t*> tables;
    LatentAttentionArgs args;
    std::vector<float> out;
  };

  /// `of` without weights' sizes looked at; rows [first, first + rows) of the sequence.
  void make(Prompt& p, const LatentHeads& of, int64_t first, int64_t rows) {
    const int64_t size = of.unturned + of.turned;
    const int64_t cached = of.rank + of.turned;
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int64_t count) {
      x.resize(static_cast<size_t>(count));
      std::ranges::generate(x, [&] { return normal(random_); });
    };
    fill(p.q, rows * of.heads * size);
    fill(p.latents, (first + rows) * cached);
    std::ranges::transform(p.latents, std::back_inserter(p.rounded), to_bf16);
    p.positions.resize(static_cast<size_t>(rows));
    std::iota(p.positions.begin(), p.positions.end(), static_cast<int32_t>(first));
    for (int64_t i = 0; i < rows * of.turned / 2; ++i) {
      p.cosines.push_back(std::cos(0.7F * static_cast<float>(i)));
      p.sines.push_back(std::sin(0.7F * static_cast<float>(i)));
    }
    p.out.resize(static_cast<size_t>(rows * of.heads * of.value));
    p.args = {.of = of,
              .q = {p.q.data(), DType::f32, of.heads * size},
              .cosines = p.cosines.data(),
              .sines = p.sines.data(),
              .positions = p.positions.data(),
              .cache = {.keys = p.latents.data(), .dtype = DType::f32},
              .scale = 1 / std::sqrt(static_cast<float>(size)),
              .out = {p.out.data(), DType::f32, of.heads * of.value}};
  }

  /// The same rows in pages, in another order.
  static void put_in_pages(Prompt& p) {
    const int64_t cached = p.args.of.rank + p.args.of.turned;
    const auto count = static_cast<int32_t>(p.latents.size() / static_cast<size_t>(cached));
    const int32_t pages =
        (count + static_cast<int32_t>(kKvPage) - 1) / static_cast<int32_t>(kKvPage);
    for (int32_t i = 0; i < pages; ++i) {
      p.table.push_back(pages - 1 - i);
    }
    p.tables.assign(p.positions.size(), p.table.data());
    p.args.cache.head_stride = p.args.cache.page_stride = kKvPage * cached;
    p.args.cache.tables = p.tables.data();
    p.paged.resize(static_cast<size_t>(pages * kKvPage * cached), NAN);
    for (int32_t i = 0; i < count; ++i) {
      std::copy_n(p.latents.begin() + i * cached, cached,
                  p.paged.begin() + p.args.cache.place(0, 0, i, cached));
    }
    p.args.cache.keys = p.paged.data();
  }

  static void run(Prompt& p, Range rows, Range heads) {
    Scratch scratch(cpu::latent_attention_scratch_bytes(p.args, rows.size(), heads.size()));
    cpu::latent_attention(p.args, rows, heads, scratch.span());
  }

  static void expect_reference(const Prompt& p, double tolerance) {
    std::vector<double> expected(p.out.size());
    const auto rows = static_cast<int64_t>(p.positions.size());
    reference::latent_attention(p.args, {0, rows}, {0, p.args.of.heads}, expected.data());
    for (size_t i = 0; i < p.out.size(); ++i) {
      ASSERT_NEAR(p.out[i], expected[i], tolerance * (1 + std::fabs(expected[i]))) << i;
    }
  }
};

TEST_F(MlaPromptTest, EveryFormMatchesTheReference) {
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      const Values w(kHeads * (10 + 7), 38, type, 0.3F, random_);
      const LatentHeads of{kHeads, 38, 10, 4, 7, w.matrix()};
      for (const bool absorbs : {false, true}) {
        for (const int64_t rows : {1, 4, 5, 70}) {
          SCOPED_TRACE(testing::Message() << name_of(type) << " rows " << rows << " " << absorbs);
          Prompt p;
          make(p, of, 90, rows);
          p.args.absorbs = absorbs;
          if (rows == 70) {
            put_in_pages(p);
          }
          run(p, {0, rows}, {0, 2});
          run(p, {0, rows}, {2, kHeads});
          expect_reference(p, 3e-5);
        }
      }
    }
  }
}

/// A prompt that is long enough for more than one stretch, and cut in the middle of a block; heads
/// by themselves.
TEST_F(MlaPromptTest, BitsDependOnNoCutWithinAForm) {
  constexpr int64_t kFirst = 200;
  constexpr int64_t kRows = 150;
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const bool bf16s : {false, true}) {
      for (const bool absorbs : {false, true}) {
        SCOPED_TRACE(testing::Message() << bf16s << absorbs);
        const Values w(kHeads * (6 + 4), 64, DType::bf16, 0.2F, random_);
        const LatentHeads of{kHeads, 64, 6, 4, 4, w.matrix()};
        ASSERT_TRUE(multiplies_out(of, 20, kFirst + kRows));
        Prompt p;
        make(p, of, kFirst, kRows);
        if (bf16s) {
          p.args.element = DType::bf16;
          p.args.cache = {.keys = p.rounded.data(), .dtype = DType::bf16};
        }
        p.args.absorbs = absorbs;
        run(p, {0, kRows}, {0, kHeads});
        const std::vector<float> whole = p.out;
        std::ranges::fill(p.out, NAN);
        for (const Range rows : {Range{0, 20}, {20, 41}, {41, kRows}}) {
          for (int64_t head = 0; head < kHeads; ++head) {
            run(p, rows, {head, head + 1});
          }
        }
        EXPECT_EQ(p.out, whole);
        expect_reference(p, bf16s ? 3e-2 : 3e-5);
      }
    }
  }
}

TEST_F(MlaPromptTest, HeadsAreMultipliedOutSoManyAtATime) {
  LatentAttentionArgs args;
  args.of.heads = 128;
  args.of.unturned = args.of.value = 128;
  args.element = DType::bf16;
  EXPECT_EQ(multiplied_heads(args, 1), 128);
  EXPECT_EQ(multiplied_heads(args, 4096), 128);
  EXPECT_EQ(multiplied_heads(args, 4097), 64);
  EXPECT_EQ(multiplied_heads(args, 13000), 32);
  EXPECT_EQ(multiplied_heads(args, 1 << 20), 1);
  args.element = DType::f32;
  EXPECT_EQ(multiplied_heads(args, 4096), 64);
}

TEST_F(MlaPromptTest, CodesHaveScalesOfTheirBlocks) {
  constexpr int64_t kRank = 150;
  const CodedHeads coded(kHeads, kRank, random_);
  const LatentHeads& of = coded.of;
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const bool absorbs : {false, true}) {
      Prompt p;
      make(p, of, 0, 30);
      p.args.scale /= 30;
      p.args.absorbs = absorbs;
      run(p, {0, 30}, {0, kHeads});
      expect_reference(p, 1e-3);
    }
  }
}

}  // namespace
}  // namespace weft
