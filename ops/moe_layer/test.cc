#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/harness/test_checks.h"
#include "ops/moe_layer/hopper_plan.h"
#include "ops/moe_layer/op.h"

namespace weft {
namespace {

TEST(MoeLayer, MatchesTheReference) { trial::expect_right("moe_layer"); }

/// Matrices and a workspace.
struct SmallMoe {
  static constexpr int64_t kRows = 3, kHidden = 32, kInner = 16, kExperts = 4;

  SmallMoe() {
    args = {.rows = kRows,
            .hidden = kHidden,
            .inner = kInner,
            .experts = kExperts,
            .chosen = 2,
            .shared = true,
            .x = matrix(kRows, kHidden, 1),
            .router = matrix(kExperts, kHidden, kHidden),
            .out = {out, DType::f16, kHidden},
            .workspace = {}};
    for (int64_t e = 0; e < args.all(); ++e) {
      args.gate.push_back(matrix(kHidden, kInner, kHidden));
      args.up.push_back(matrix(kHidden, kInner, kHidden));
      args.down.push_back(matrix(kInner, kHidden, kInner));
    }
    const Result<size_t> bytes = moe_layer_workspace(args, {});
    EXPECT_TRUE(bytes.ok());
    memory.resize(*bytes + 256);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    args.workspace = {memory.data() + (256 - address % 256) % 256, *bytes};
  }

  ConstMatrix matrix(int64_t rows, int64_t columns, int64_t over) {
    auto& made = matrices.emplace_back(static_cast<size_t>(rows * columns));
    std::ranges::generate(
        made, [&] { return to_f16(random.normal() / std::sqrt(static_cast<float>(over))); });
    return {made.data(), DType::f16, columns};
  }
  std::vector<double> expected(bool rounded) const {
    std::vector<double> y(kRows * kHidden);
    reference::moe_layer(args, {0, kRows}, rounded, y.data());
    return y;
  }

  trial::Random random{5};
  std::vector<std::vector<f16>> matrices;
  alignas(16) f16 out[kRows * kHidden] = {};
  std::vector<std::byte> memory;
  MoeLayerArgs args;
};

// The same bits as the definition's, but for a rounding here and there; not to round is another
// thing.
TEST(MoeLayer, RoundsWhereTheChallengeDoes) {
  SmallMoe small;
  ASSERT_TRUE(moe_layer(small.args, {}).ok());
  const auto alike = [&](const std::vector<double>& expected) {
    int64_t count = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      count += to_float(to_f16(static_cast<float>(expected[i]))) == to_float(small.out[i]) ? 1 : 0;
    }
    return count;
  };
  EXPECT_GT(alike(small.expected(true)), SmallMoe::kRows * SmallMoe::kHidden * 9 / 10);
  EXPECT_LT(alike(small.expected(false)), SmallMoe::kRows * SmallMoe::kHidden * 8 / 10);
}

void expect_refused(const MoeLayerArgs& args, std::string_view says) {
  const Status status = moe_layer(args, {});
  ASSERT_FALSE(status.ok()) << says;
  EXPECT_EQ(status.error().kind, ErrorKind::usage);
  EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
}

TEST(MoeLayer, RefusesWhatItCannotCompute) {
  const SmallMoe small;
  MoeLayerArgs args = small.args;
  args.chosen = 5;
  expect_refused(args, "moe_layer: experts is 4, but must be at least 5");
  args = small.args;
  args.up.pop_back();
  expect_refused(args, "moe_layer: there are 4 matrices `up`, but must be 5");
  args = small.args;
  args.down[1].dtype = DType::bf16;
  expect_refused(args, "down is BF16, but must be F16");
  args = small.args;
  args.hidden = 36;
  expect_refused(args, "moe_layer: hidden is 36, but must be a multiple of 8");
}

// What the router would give, given, is the same result bit by bit.
TEST(MoeLayer, MayBeGivenTheDraw) {
  SmallMoe small;
  ASSERT_TRUE(moe_layer(small.args, {}).ok());
  const std::vector<f16> expected(std::begin(small.out), std::end(small.out));
  const MoeLayerBuffers buffers(small.args, small.args.workspace.data, false);
  const int64_t slots = SmallMoe::kRows * small.args.slots_of_row();
  std::vector<int32_t> ids(buffers.drawn.ids, buffers.drawn.ids + slots);
  const std::vector<float> weights(buffers.drawn.weights, buffers.drawn.weights + slots);
  std::ranges::fill(small.out, f16{});
  small.args.router = {};
  small.args.ids = ids.data();
  small.args.weights = weights.data();
  ASSERT_TRUE(moe_layer(small.args, {}).ok());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(to_float(small.out[i]), to_float(expected[i])) << i;
  }
  ids[4] = 5;
  expect_refused(small.args, "moe_layer: row 1 has drawn expert 5, but there are 5");
  small.args.weights = nullptr;
  expect_refused(small.args, "moe_layer: ids must be aligned to 16 bytes, and come with weights");
}

TEST(MoeLayer, OnAmdAMatrixHasFourGibibytesAtMost) {
  const Kernel<MoeLayerArgs>* kernel = moe_layer_kernel(Arch::cdna);
  if (kernel == nullptr) {
    GTEST_SKIP() << "this build has no AMD kernels";
  }
  SmallMoe small;
  EXPECT_EQ(kernel->plan(small.args, {}).kernel, "grouped");
  small.args.down[2].stride = int64_t{1} << 27;  // times 16 rows of 2 bytes
  EXPECT_TRUE(kernel->plan(small.args, {}).kernel.empty());
}

TEST(MoeLayer, TilesAreOfOneExpertsRowsWhereTheyFit) {
  MoeLayerArgs args;
  args.chosen = 4;
  args.experts = 32;
  args.rows = 2048;
  EXPECT_EQ(hopper::plan_moe_layer(args, {}).tile_m, 144);
  args.rows = 8192;
  EXPECT_EQ(hopper::plan_moe_layer(args, {}).tile_m, 192);
}

}  // namespace
}  // namespace weft
