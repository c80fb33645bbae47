#include "ops/moe/op.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "ops/linear/test_operands.h"

namespace weft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What a row of logits draws.
struct Draw {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Draw draw(const std::vector<float>& logits, int64_t chosen, bool renormalise,
          bool sigmoid = false) {
  Draw result{std::vector<int32_t>(static_cast<size_t>(chosen), -1),
              std::vector<float>(static_cast<size_t>(chosen))};
  const auto experts = std::ssize(logits);
  cpu::route({.logits = {logits.data(), DType::f32, experts},
              .experts = experts,
              .sigmoid = sigmoid,
              .renormalise = renormalise,
              .drawn = {result.ids.data(), result.weights.data(), chosen, chosen}},
             {0, 1});
  return result;
}
using Ids = std::vector<int32_t>;

TEST(Route, DrawsTheLargestInAscendingOrder) {
  EXPECT_EQ(draw({1, 5, 2, 4}, 2, true).ids, (Ids{1, 3}));
  EXPECT_EQ(draw({9, 5, 2, 4}, 3, true).ids, (Ids{0, 1, 3}));
  EXPECT_EQ(draw({1, 5, 2, 4}, 4, false).ids, (Ids{0, 1, 2, 3}));
  EXPECT_EQ(draw({-1, -5, -2, -4}, 2, false).ids, (Ids{0, 2}));
}

TEST(Route, OfEqualsTheLowerNumbersAreDrawn) {
  EXPECT_EQ(draw({1, 3, 3, 3}, 2, false).ids, (Ids{1, 2}));
  EXPECT_EQ(draw({0, 0, 0, 0}, 2, false).ids, (Ids{0, 1}));
  EXPECT_EQ(draw({3, 1, 3, 2, 3}, 2, false).ids, (Ids{0, 2}));
  EXPECT_EQ(draw({0.0F, -0.0F, 0.0F}, 2, false).ids, (Ids{0, 1}));
  // A near tie is none.
  EXPECT_EQ(draw({1, std::nextafter(1.0F, 2.0F), 1}, 1, false).ids, (Ids{1}));
}

TEST(Route, WeightsAreOfAllOrOfTheChosen) {
  const Draw all = draw({std::log(1.0F), std::log(2.0F), std::log(5.0F)}, 2, false);
  EXPECT_NEAR(all.weights[0], 2.0 / 8, 1e-6);
  EXPECT_NEAR(all.weights[1], 5.0 / 8, 1e-6);
  const Draw chosen = draw({std::log(1.0F), std::log(2.0F), std::log(5.0F)}, 2, true);
  EXPECT_NEAR(chosen.weights[0], 2.0 / 7, 1e-6);
  EXPECT_NEAR(chosen.weights[1], 5.0 / 7, 1e-6);
  EXPECT_NEAR(draw({-2}, 1, false, true).weights[0], 1 / (1 + std::exp(2.0)), 1e-6);
  EXPECT_EQ(draw({1000, -1000}, 2, false).weights, (std::vector<float>{1, 0}));
  EXPECT_EQ(draw({-1000}, 1, false, true).weights, (std::vector<float>{0}));
}

TEST(Route, NotANumberIsTheLargestAndSpoilsItsRow) {
  const Draw one = draw({5, kInfinity, kNan, 9}, 2, false);
  EXPECT_EQ(one.ids, (Ids{1, 2}));
  EXPECT_TRUE(std::isnan(one.weights[0]) && std::isnan(one.weights[1]));
  const Draw all = draw({kNan, kNan, kNan}, 2, true);
  EXPECT_EQ(all.ids, (Ids{0, 1}));
  EXPECT_TRUE(std::isnan(all.weights[0]));
}

/// As DeepSeek draws: six experts in three groups.
Draw draw_grouped(const std::vector<float>& logits, const std::vector<float>& correction,
                  int64_t kept_groups, int64_t chosen) {
  Draw result{std::vector<int32_t>(static_cast<size_t>(chosen), -1),
              std::vector<float>(static_cast<size_t>(chosen))};
  RouteArgs args{.logits = {logits.data(), DType::f32, 6},
                 .experts = 6,
                 .sigmoid = !correction.empty(),
                 .renormalise = !correction.empty(),
                 .drawn = {result.ids.data(), result.weights.data(), chosen, chosen}};
  args.correction = {correction.empty() ? nullptr : correction.data(), DType::f32};
  args.groups = 3;
  args.kept_groups = kept_groups;
  args.scale = 2.5F;
  cpu::route(args, {0, 1});
  std::vector<int32_t> ids(static_cast<size_t>(chosen));
  std::vector<double> weights(static_cast<size_t>(chosen));
  reference::route(args, {0, 1}, ids.data(), weights.data());
  EXPECT_EQ(result.ids, ids);
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(std::isnan(result.weights[i]), std::isnan(weights[i]));
    EXPECT_FALSE(std::fabs(result.weights[i] - weights[i]) > 1e-6);
  }
  return result;
}

TEST(Route, ExpertsAreOfTheBestGroups) {
  // The best one of each group: 5, 4, 3. Expert 4 is better than 1, but of the last group.
  const Draw two = draw_grouped({5, 1, 4, 0, 3, 2}, {}, 2, 3);
  EXPECT_EQ(two.ids, (Ids{0, 1, 2}));
  const double sum =
      std::exp(0) + std::exp(-4) + std::exp(-1) + std::exp(-5) + std::exp(-2) + std::exp(-3);
  EXPECT_NEAR(two.weights[0], 2.5 / sum, 1e-6);
  EXPECT_EQ(draw_grouped({5, 1, 4, 0, 3, 2}, {}, 3, 3).ids, (Ids{0, 2, 4}));
  EXPECT_EQ(draw_grouped({1, 1, 1, 1, 1, 1}, {}, 1, 2).ids, (Ids{0, 1}));  // ties: the first
}

TEST(Route, ACorrectionChoosesButDoesNotWeigh) {
  const std::vector<float> even(6, 0);
  const Draw last = draw_grouped(even, {0, 0, 0, 0, 0.2F, 0.1F}, 1, 2);
  EXPECT_EQ(last.ids, (Ids{4, 5}));
  EXPECT_NEAR(last.weights[0], 1.25, 1e-6);  // half of the scale: all sigmoids are the same
  // A group is as good as its best two together: 0.9 + 0.1 is less than 0.6 + 0.6.
  EXPECT_EQ(draw_grouped(even, {0.4F, -0.4F, 0.1F, 0.1F, 0, 0}, 1, 2).ids, (Ids{2, 3}));
  // Below zero all are, and some are chosen still.
  EXPECT_EQ(draw_grouped(even, {-3, -2, -1, -5, -4, -9}, 2, 3).ids, (Ids{0, 1, 2}));
  const Draw nan = draw_grouped({0, 0, 0, kNan, 0, 0}, even, 1, 2);
  EXPECT_EQ(nan.ids, (Ids{2, 3}));
  EXPECT_TRUE(std::isnan(nan.weights[0]));
}

/// Rows of activations and experts, with ids as a test wants them.
class Mixture {
 public:
  static constexpr int64_t kN = 40;
  static constexpr int64_t kHidden = 72;

  Mixture(int64_t rows, int64_t experts, std::vector<int32_t> ids, std::mt19937& random)
      : rows_(rows),
        chosen_(std::ssize(ids) / rows),
        ids_(std::move(ids)),
        weights_(ids_.size()),
        a_(rows, kHidden, DType::f32, 1, random) {
    std::uniform_real_distribution<float> share(0.1F, 1);
    for (float& weight : weights_) {
      weight = share(random);
    }
    for (int64_t e = 0; e < experts; ++e) {
      for (const auto& [n, k] : {std::pair(kN, kHidden), {kN, kHidden}, {kHidden, kN}}) {
        matrices_.push_back(std::make_unique<Values>(n, k, DType::bf16, 0.2F, random));
      }
    }
  }

  /// The sum of the rows' experts, by columns in two shares.
  std::vector<float> run(Range rows, int64_t cut = 16, bool alone = false) {
    std::vector<float> between(ids_.size() * kN, kNan);
    std::vector<float> out(static_cast<size_t>(rows_ * kHidden), 0);
    const Drawn drawn{ids_.data(), weights_.data(), chosen_, chosen_, alone};
    ExpertsUpArgs up{.a = a_.matrix(), .drawn = drawn, .out = {between.data(), DType::f32, kN}};
    ExpertsDownArgs down{.a = {between.data(), DType::f32, kN},
                         .drawn = drawn,
                         .out = {out.data(), DType::f32, kHidden}};
    for (size_t e = 0; e < matrices_.size() / 3; ++e) {
      GatedLinearArgs gated;
      gated.gate = matrices_[3 * e]->matrix();
      gated.up = matrices_[3 * e + 1]->matrix();
      gated.n = kN;
      gated.k = kHidden;
      up.experts.push_back(gated);
      LinearArgs linear;
      linear.w = matrices_[3 * e + 2]->matrix();
      linear.n = kHidden;
      linear.k = kN;
      down.experts.push_back(linear);
    }
    Scratch scratch(std::max(cpu::experts_up_scratch_bytes(up, rows.size()),
                             cpu::experts_down_scratch_bytes(down, rows.size())));
    for (const Range columns : {Range{0, cut}, Range{cut, kN}}) {
      cpu::experts_up(up, rows, columns, scratch.span());
    }
    for (const Range columns : {Range{0, cut}, Range{cut, kHidden}}) {
      cpu::experts_down(down, rows, columns, scratch.span());
    }
    expected_.resize(static_cast<size_t>(rows.size() * kHidden));
    reference::experts_down(down, rows, {0, kHidden}, expected_.data());
    return out;
  }
  const std::vector<double>& expected() const { return expected_; }
  Values& a() { return a_; }

 private:
  int64_t rows_, chosen_;
  std::vector<int32_t> ids_;
  std::vector<float> weights_;
  Values a_;
  std::vector<std::unique_ptr<Values>> matrices_;  // gate, up, down of each expert
  std::vector<double> expected_;
};

class ExpertsTest : public Products {
 protected:
  /// Two of six for each row.
  static std::vector<int32_t> spread_ids(int64_t rows) {
    std::vector<int32_t> ids;
    for (int64_t r = 0; r < rows; ++r) {
      ids.push_back(static_cast<int32_t>(r % 3));
      ids.push_back(static_cast<int32_t>(3 + r * r % 3));
    }
    return ids;
  }
  static void expect_near(const Mixture& mixture, const std::vector<float>& out) {
    for (size_t i = 0; i < out.size(); ++i) {
      ASSERT_NEAR(out[i], mixture.expected()[i], 1e-5 * (1 + std::fabs(mixture.expected()[i])))
          << i;
    }
  }
};

TEST_F(ExpertsTest, AllRowsMayHaveOneExpertAndSomeExpertsNone) {
  for (const cpu::Isa isa : available()) {
    cpu::force_isa(isa);
    for (const int64_t rows : {1, 7, 30}) {
      SCOPED_TRACE(testing::Message() << name_of(isa) << ", " << rows << " rows");
      Mixture all_one(rows, 4, std::vector<int32_t>(static_cast<size_t>(rows), 2), random_);
      expect_near(all_one, all_one.run({0, rows}));
      Mixture apart(rows, 6, spread_ids(rows), random_);
      expect_near(apart, apart.run({0, rows}));
    }
  }
}

/// Of few rows, or of rows that are to be alone: many that meet one expert are multiplied by
/// another kernel.
TEST_F(ExpertsTest, BitsDependNeitherOnOtherRowsNorOnShares) {
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const auto& [rows, alone] : {std::pair(int64_t{8}, false), {40, true}}) {
      Mixture mixture(rows, 6, spread_ids(rows), random_);
      const std::vector<float> whole = mixture.run({0, rows}, 16, alone);
      EXPECT_EQ(mixture.run({0, rows}, 24, alone), whole);
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<float> one = mixture.run({r, r + 1}, 16, alone);
        for (int64_t c = r * Mixture::kHidden; c < (r + 1) * Mixture::kHidden; ++c) {
          ASSERT_EQ(one[static_cast<size_t>(c)], whole[static_cast<size_t>(c)]) << rows << ' ' << c;
        }
      }
    }
  }
}

TEST_F(ExpertsTest, NotANumberStaysInItsRow) {
  for (const cpu::Isa isa : available()) {
    SCOPED_TRACE(name_of(isa));
    cpu::force_isa(isa);
    for (const int64_t rows : {3, 40}) {
      Mixture mixture(rows, 6, spread_ids(rows), random_);
      const std::vector<float> before = mixture.run({0, rows});
      mixture.a().set(mixture.a().stride, kNan);  // in row 1
      const std::vector<float> after = mixture.run({0, rows});
      for (size_t i = 0; i < after.size(); ++i) {
        if (i / Mixture::kHidden == 1) {
          ASSERT_TRUE(std::isnan(after[i])) << i;
        } else {
          ASSERT_EQ(after[i], before[i]) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
