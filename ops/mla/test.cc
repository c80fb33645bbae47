#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ops/linear/test_operands.h"
#include "ops/mla/op.h"
#include "ops/mla/test_heads.h"

namespace weft {
namespace {

/// Angles of a few positions.
struct Angles {
  Angles(int64_t rows, int64_t turned) {
    for (int64_t i = 0; i < rows * turned / 2; ++i) {
      cosines.push_back(std::cos(0.7F * static_cast<float>(i)));
      sines.push_back(std::sin(0.7F * static_cast<float>(i)));
    }
  }
  std::vector<float> cosines, sines;
};

/// A tolerance for a sum of products whose terms are all of order 1 and less.
void expect_near(const std::vector<float>& got, const std::vector<double>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::fabs(expected[i]))) << i;
  }
}

class MlaTest : public Products {};

TEST_F(MlaTest, AppendNormsTurnsAndFindsItsPlace) {
  constexpr int64_t kRank = 37 + 1;
  constexpr int64_t kTurned = 6;
  constexpr int64_t kRow = kRank + kTurned;
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const bool paged : {false, true}) {
      const Values x(3, kRow, DType::f32, 1, random_);
      const Values norm(1, kRank, DType::bf16, 1, random_);
      const Angles angles(3, kTurned);
      const std::vector<int32_t> positions = {63, 64, 65};
      std::vector<float> cache(3 * kKvPage * kRow, -1);
      const std::vector<int32_t> table = {2, 0};
      const std::vector<const int32_t*> tables(3, table.data());
      LatentAppendArgs args{.x = x.matrix(),
                            .norm = norm.vector(),
                            .rank = kRank,
                            .turned = kTurned,
                            .epsilon = 1e-6F,
                            .positions = positions.data(),
                            .cosines = angles.cosines.data(),
                            .sines = angles.sines.data(),
                            .cache = {.keys = cache.data(), .dtype = DType::f32}};
      if (paged) {
        args.cache.head_stride = args.cache.page_stride = kKvPage * kRow;
        args.cache.tables = tables.data();
      }
      cpu::latent_append(args, {0, 3});
      std::vector<double> expected(3 * kRow);
      reference::latent_append(args, {0, 3}, expected.data());
      std::vector<float> got;
      for (int64_t r = 0; r < 3; ++r) {
        const int64_t place = args.cache.place(r, 0, positions[static_cast<size_t>(r)], kRow);
        got.insert(got.end(), cache.begin() + place, cache.begin() + place + kRow);
        std::fill_n(cache.begin() + place, kRow, -1.0F);
      }
      expect_near(got, expected, 2e-6);
      EXPECT_EQ(std::ranges::count(cache, -1.0F), std::ssize(cache));  // and nothing else
    }
  }
}

/// Keys and values multiplied out and attended to, as the definition has it, against the absorbed
/// products: rank, head sizes and rows that fill no vector.
TEST_F(MlaTest, QueriesAndValuesMatchTheReference) {
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const int64_t rows : {1, 6, 21}) {
        SCOPED_TRACE(testing::Message() << name_of(type) << " rows " << rows);
        constexpr int64_t kHeads = 3;
        const Values w(kHeads * (10 + 7), 70, type, 0.2F, random_);
        const LatentHeads of{kHeads, 70, 10, 4, 7, w.matrix()};
        const Values q(rows, kHeads * 14, DType::f32, 1, random_);
        const Angles angles(rows, 4);
        std::vector<float> queries(static_cast<size_t>(rows * kHeads * 74));
        const LatentQueriesArgs into{.of = of,
                                     .q = q.matrix(),
                                     .cosines = angles.cosines.data(),
                                     .sines = angles.sines.data(),
                                     .out = {queries.data(), DType::f32, kHeads * 74}};
        cpu::latent_queries(into, {0, rows}, {0, 1});
        cpu::latent_queries(into, {0, rows}, {1, kHeads});
        std::vector<double> expected(queries.size());
        reference::latent_queries(into, {0, rows}, {0, kHeads}, expected.data());
        expect_near(queries, expected, 4e-6);
        const std::vector<float> whole = queries;
        for (int64_t r = 0; r < rows; ++r) {
          cpu::latent_queries(into, {r, r + 1}, {0, kHeads});
        }
        EXPECT_EQ(queries, whole);

        std::vector<float> values(static_cast<size_t>(rows * kHeads * 7));
        const LatentValuesArgs out{.of = of,
                                   .a = {queries.data(), DType::f32, kHeads * 74},
                                   .pitch = 74,
                                   .out = {values.data(), DType::f32, kHeads * 7}};
        Scratch scratch(cpu::latent_values_scratch_bytes(out, rows));
        cpu::latent_values(out, {0, rows}, {0, 2}, scratch.span());
        cpu::latent_values(out, {0, rows}, {2, kHeads}, scratch.span());
        expected.resize(values.size());
        reference::latent_values(out, {0, rows}, {0, kHeads}, expected.data());
        expect_near(values, expected, 1e-5);
      }
    }
  }
}

TEST_F(MlaTest, CodesHaveScalesOfTheirBlocks) {
  constexpr int64_t kHeads = 2;
  constexpr int64_t kRank = 150;
  const CodedHeads coded(kHeads, kRank, random_);
  const LatentHeads& of = coded.of;
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    const Values q(5, kHeads * 130, DType::f32, 0.1F, random_);
    const Angles angles(5, 2);
    std::vector<float> queries(5 * kHeads * (kRank + 2));
    const LatentQueriesArgs into{.of = of,
                                 .q = q.matrix(),
                                 .cosines = angles.cosines.data(),
                                 .sines = angles.sines.data(),
                                 .out = {queries.data(), DType::f32, kHeads * (kRank + 2)}};
    cpu::latent_queries(into, {0, 5}, {0, kHeads});
    std::vector<double> expected(queries.size());
    reference::latent_queries(into, {0, 5}, {0, kHeads}, expected.data());
    expect_near(queries, expected, 1e-5);
    std::vector<float> alone(5 * kHeads * kRank);
    LatentQueriesArgs columns = into;
    columns.out = {alone.data(), DType::f32, kHeads * kRank};
    for (const Range some : {Range{0, 48}, {48, kRank}, {kRank, kHeads * kRank}}) {
      cpu::latent_query_columns(columns, {0, 5}, some);
    }
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(alone[i], queries[i + i / kRank * 2]) << i;
    }

    std::vector<float> values(5 * kHeads * 128);
    const LatentValuesArgs out{.of = of,
                               .a = {queries.data(), DType::f32, kHeads * (kRank + 2)},
                               .pitch = kRank + 2,
                               .out = {values.data(), DType::f32, kHeads * 128}};
    Scratch scratch(cpu::latent_values_scratch_bytes(out, 5));
    cpu::latent_values(out, {0, 5}, {0, kHeads}, scratch.span());
    expected.resize(values.size());
    reference::latent_values(out, {0, 5}, {0, kHeads}, expected.data());
    expect_near(values, expected, 1e-4);
    std::vector<float> same(values.size());
    LatentValuesArgs columns_out = out;
    columns_out.out.data = same.data();
    for (const Range some : {Range{0, 16}, {16, 144}, {144, 256}}) {
      cpu::latent_value_columns(columns_out, {0, 5}, some, scratch.span());
    }
    EXPECT_EQ(same, values);
  }
}

}  // namespace
}  // namespace weft
