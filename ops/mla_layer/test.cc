#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/harness/test_checks.h"
#include "ops/mla_layer/op.h"

namespace weft {
namespace {

TEST(MlaLayer, MatchesTheReference) { trial::expect_right("mla_layer"); }

std::vector<bf16> angles(int64_t positions) {
  std::vector<bf16> made(static_cast<size_t>(positions * kLatentTurned));
  mla_layer_angles(positions, made.data());
  return made;
}

TEST(MlaLayer, AnglesAreComputedInBf16) {
  const auto made = angles(300);
  const auto cosine = [&](int64_t position, int64_t i) {
    return to_float(made[static_cast<size_t>(position * kLatentTurned + i)]);
  };
  const auto sine = [&](int64_t position, int64_t i) { return cosine(position, 32 + i); };
  const auto bf16_of = [](double x) { return to_float(to_bf16(static_cast<float>(x))); };
  EXPECT_EQ(cosine(0, 7), 1);
  EXPECT_EQ(sine(0, 7), 0);
  EXPECT_EQ(cosine(3, 0), bf16_of(std::cos(3.0)));
  // 9984^(-1/2) is 0.010008, next to which bf16 has 0.01001; 200 times that is 2.002, and 2 in
  // bf16.
  EXPECT_EQ(cosine(200, 16), bf16_of(std::cos(2.0)));
  EXPECT_EQ(sine(200, 16), bf16_of(std::sin(2.0)));
  // 257 is 256 in bf16, 259 is 260.
  for (int64_t i = 0; i < 2 * 32; ++i) {
    EXPECT_EQ(cosine(257, i), cosine(256, i));
    EXPECT_EQ(cosine(259, i), cosine(260, i));
  }
}

/// One head, a small model, random numbers; the cache's new row poisoned.
struct Small {
  static constexpr int64_t kDim = 64, kRank = 16, kPrefill = 400;

  Small() : angles(weft::angles(kPrefill + 1)) {
    args = {.batch = 1,
            .dim = kDim,
            .q_rank = kRank,
            .heads = 1,
            .prefill = kPrefill,
            .capacity = kPrefill + 1,
            .x = matrix(1, kDim, 1),
            .q_down = matrix(kRank, kDim, kDim),
            .q_up = matrix(kLayerQuery, kRank, kRank),
            .kv_down = matrix(kLatentRow, kDim, kDim),
            .kv_up = matrix(kLayerNope + kLayerValue, kLatentRank, kLatentRank),
            .o = matrix(kDim, kLayerValue, kLayerValue),
            .cache = const_cast<void*>(matrix(kPrefill + 1, kLatentRow, 1).data),
            .angles = angles.data(),
            .out = {out, DType::bf16, kDim},
            .workspace = {}};
    memory.resize(*mla_layer_workspace(args, {}) + 256);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    args.workspace = {memory.data() + (256 - address % 256) % 256, memory.size() - 256};
  }

  ConstMatrix matrix(int64_t rows, int64_t columns, int64_t over) {
    matrices.emplace_back(static_cast<size_t>(rows * columns));
    std::generate(matrices.back().begin(), matrices.back().end(),
                  [&] { return to_bf16(random.normal() / std::sqrt(static_cast<float>(over))); });
    return {matrices.back().data(), DType::bf16, columns};
  }

  /// The largest difference of y from what the reference says with `by` as angles.
  double distance(const std::vector<bf16>& by) {
    MlaLayerArgs other = args;
    other.angles = by.data();
    std::vector<double> y(kDim);
    std::vector<double> row(kLatentRow);
    reference::mla_layer(other, {0, 1}, true, y.data(), row.data());
    double most = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      most = std::max(most, std::fabs(y[i] - to_float(out[i])));
    }
    return most;
  }

  trial::Random random{5};
  std::vector<std::vector<bf16>> matrices;
  std::vector<bf16> angles;
  alignas(16) bf16 out[kDim] = {};
  std::vector<std::byte> memory;
  MlaLayerArgs args;
};

// Angles that are exact, and only then rounded, are another problem's.
TEST(MlaLayer, ExactAnglesAreNoticed) {
  Small small;
  ASSERT_TRUE(mla_layer(small.args, {}).ok());
  std::vector<bf16> exact(small.angles);
  for (int64_t position = 0; position <= Small::kPrefill; ++position) {
    for (int64_t i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -i / 32.0);
      exact[position * kLatentTurned + i] = to_bf16(static_cast<float>(std::cos(angle)));
      exact[position * kLatentTurned + 32 + i] = to_bf16(static_cast<float>(std::sin(angle)));
    }
  }
  const double right = small.distance(small.angles);
  EXPECT_GT(small.distance(exact), 4 * right);
}

void expect_refused(const MlaLayerArgs& args, std::string_view says) {
  const Status status = mla_layer(args, {});
  ASSERT_FALSE(status.ok()) << says;
  EXPECT_EQ(status.error().kind, ErrorKind::usage);
  EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
}

TEST(MlaLayer, RefusesWhatItCannotCompute) {
  const Small small;
  MlaLayerArgs args = small.args;
  args.heads = 129;
  expect_refused(args, "mla_layer: heads is 129, but must be at most 128");
  args = small.args;
  args.prefill = args.capacity;
  expect_refused(args, "mla_layer: capacity is 401, but must be at least 402");
  args = small.args;
  args.o.dtype = DType::f32;
  expect_refused(args, "o is F32, but must be BF16");
  args = small.args;
  args.angles = nullptr;
  expect_refused(args, "angles is null");
  args = small.args;
  args.workspace.bytes = 0;
  expect_refused(args, "the workspace has 0 bytes");
}

}  // namespace
}  // namespace weft
