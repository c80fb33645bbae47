// Experts in MXFP4 against the reference in double: both kernels, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ops/linear/test_operands.h"
#include "ops/moe/op.h"

namespace weft {
namespace {

constexpr int64_t kExperts = 3;

/// Random codes [rows, k] for every expert, gate's and up's rows by turns where `step` is 2, scales
/// of a wide range.
struct MxValues {
  MxValues(int64_t rows, int64_t k, int64_t step, std::mt19937& random)
      : rows(rows), k(k), step(step) {
    codes.resize(static_cast<size_t>(kExperts * step * rows * k / 2));
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(random());
    }
    scales.resize(codes.size() / (kMxBlock / 2));
    for (e8m0& scale : scales) {
      scale.bits = static_cast<uint8_t>(120 + random() % 6);
    }
  }
  MxMatrix of(int64_t expert, int64_t part) const {
    const int64_t row = expert * step * rows + part;
    return {codes.data() + row * (k / 2), scales.data() + row * (k / kMxBlock), k, step};
  }

  int64_t rows, k, step;
  std::vector<uint8_t> codes;
  std::vector<e8m0> scales;
};

class Mxfp4Test : public Products {
 protected:
  /// Every third row has one expert alone, so that few rows meet it.
  static std::vector<int32_t> draw(int64_t rows) {
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < rows; ++r) {
      ids.push_back(r % 3 == 0 ? 0 : 1);
      ids.push_back(2);
    }
    return ids;
  }
};

TEST(MxMatrix, NumbersAreCodesTimesPowersOfTwo) {
  // 0.5 and -6, then zeros; 2^-1 and 2^3.
  std::vector<uint8_t> codes(32);
  codes[0] = 0xf1;
  codes[31] = 0x2a;
  const std::vector<e8m0> scales = {{126}, {130}};
  const MxMatrix matrix{codes.data(), scales.data(), 64};
  EXPECT_EQ(matrix.at(0, 0), 0.25F);
  EXPECT_EQ(matrix.at(0, 1), -3.0F);
  EXPECT_EQ(matrix.at(0, 2), 0.0F);
  EXPECT_EQ(matrix.at(0, 62), -8.0F);
  EXPECT_EQ(matrix.at(0, 63), 8.0F);
}

TEST_F(Mxfp4Test, MatchesTheDefinition) {
  constexpr int64_t kN = 70;
  constexpr int64_t kHidden = 96;
  constexpr int64_t kBetween = 64;  // a multiple of a block: what the second products read
  for (const cpu::Isa isa : available()) {
    cpu::force_isa(isa);
    for (const float limit : {0.0F, 1.5F}) {
      for (const int64_t rows : {1, 5, 40}) {
        SCOPED_TRACE(testing::Message() << name_of(isa) << " limit " << limit << " rows " << rows);
        const MxValues both(kN, kHidden, 2, random_);
        const MxValues down(kHidden, kBetween, 1, random_);
        Values a(rows, kHidden, DType::f32, 1, random_);
        Values biases(3, kExperts * kHidden, DType::bf16, 0.5F, random_);
        std::vector<int32_t> ids = draw(rows);
        std::vector<float> shares(ids.size(), 0.6F);
        const Drawn drawn{ids.data(), shares.data(), 2, 2};
        std::vector<float> between(ids.size() * kN);
        std::vector<float> out(static_cast<size_t>(rows * kHidden), 0.25F);
        ExpertsUpArgs up{.a = a.matrix(),
                         .drawn = drawn,
                         .out = {between.data(), DType::f32, kN},
                         .limit = limit};
        ExpertsDownArgs second{.a = {between.data(), DType::f32, kN},
                               .drawn = drawn,
                               .alpha = 0.5F,
                               .accumulate = true,
                               .out = {out.data(), DType::f32, kHidden}};
        for (int64_t e = 0; e < kExperts; ++e) {
          GatedLinearArgs gated;
          gated.gate_bias = biases.vector();
          gated.up_bias = {biases.bytes.data() + 2 * (e + 1), DType::bf16};
          gated.n = kN;
          gated.k = kHidden;
          up.experts.push_back(gated);
          up.gates.push_back(both.of(e, 0));
          up.ups.push_back(both.of(e, 1));
          LinearArgs linear;
          linear.bias = {biases.bytes.data() + 20 * (e + 1), DType::bf16};
          linear.n = kHidden;
          linear.k = kBetween;
          second.experts.push_back(linear);
          second.mx.push_back(down.of(e, 0));
        }
        Scratch scratch(std::max(cpu::experts_up_scratch_bytes(up, rows),
                                 cpu::experts_down_scratch_bytes(second, rows)));
        for (const Range columns : {Range{0, 37}, Range{37, kN}}) {
          cpu::experts_up(up, {0, rows}, columns, scratch.span());
        }
        std::vector<double> expected(ids.size() * kN);
        reference::experts_up(up, {0, rows}, {0, kN}, expected.data());
        // Sums of 96 products of up to 6 * 2^-2 * |a|, and a product of two of them.
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(between[i], expected[i], 2e-5 * (1 + std::fabs(expected[i]))) << i;
        }
        for (const Range columns : {Range{0, 50}, Range{50, kHidden}}) {
          cpu::experts_down(second, {0, rows}, columns, scratch.span());
        }
        std::vector<double> sums(static_cast<size_t>(rows * kHidden));
        reference::experts_down(second, {0, rows}, {0, kHidden}, sums.data());
        for (size_t i = 0; i < sums.size(); ++i) {
          ASSERT_NEAR(out[i], 0.25 + sums[i], 1e-4 * (1 + std::fabs(sums[i]))) << i;
        }
      }
    }
  }
}

TEST_F(Mxfp4Test, BitsDependNeitherOnOtherRowsNorOnShares) {
  constexpr int64_t kN = 45;
  constexpr int64_t kK = 64;
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    const MxValues weights(kN, kK, 1, random_);
    Values a(7, kK, DType::f32, 1, random_);
    std::vector<int32_t> ids(7, 1);
    std::vector<float> shares(7, 1);
    const auto run = [&](Range rows, int64_t cut) {
      std::vector<float> out(7 * kN);
      ExpertsDownArgs args{.a = a.matrix(),
                           .drawn = {ids.data(), shares.data(), 1, 1},
                           .out = {out.data(), DType::f32, kN}};
      for (int64_t e = 0; e < kExperts; ++e) {
        LinearArgs linear;
        linear.n = kN;
        linear.k = kK;
        args.experts.push_back(linear);
        args.mx.push_back(weights.of(e, 0));
      }
      Scratch scratch(cpu::experts_down_scratch_bytes(args, rows.size()));
      cpu::experts_down(args, rows, {0, cut}, scratch.span());
      cpu::experts_down(args, rows, {cut, kN}, scratch.span());
      return out;
    };
    const std::vector<float> whole = run({0, 7}, 20);
    EXPECT_EQ(run({0, 7}, 31), whole);
    for (int64_t r = 0; r < 7; ++r) {
      const std::vector<float> alone = run({r, r + 1}, 3);
      for (int64_t c = r * kN; c < (r + 1) * kN; ++c) {
        ASSERT_EQ(alone[static_cast<size_t>(c)], whole[static_cast<size_t>(c)]) << c;
      }
    }
  }
}

}  // namespace
}  // namespace weft
