// The sanitizer knows lanes apart: what moves a value from lane to lane moves whether it means
// something (sim/testdata/lanes.hip).
#include <gtest/gtest.h>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

constexpr uint64_t kAllLanes = ~uint64_t{0};

class CrossLane : public KernelTest {
 protected:
  void SetUp() override { load("lanes"); }

  template <class... Arguments>
  void expect_right(const char* kernel, Arguments... arguments) {
    EXPECT_EQ(findings(run(kernel, {1}, {64}, out_.data(), arguments...)), "") << kernel;
  }
  /// It uses a register of which `lane` means nothing.
  template <class... Arguments>
  void expect_wrong(const char* kernel, int lane, Arguments... arguments) {
    const LaunchReport report = run(kernel, {1}, {64}, out_.data(), arguments...);
    ASSERT_EQ(report.findings.size(), 1U) << kernel << ": " << findings(report);
    EXPECT_EQ(report.findings[0].kind, FindingKind::uninitialized_register) << findings(report);
    EXPECT_EQ(report.findings[0].lane, lane) << findings(report);
  }

  std::span<int> out_ = array<int>(64);
};

TEST_P(CrossLane, OneLaneOfARegister) {
  expect_right("spilled_scalar", 33, 5);
  EXPECT_EQ(out_[33], 33);
  expect_wrong("spilled_scalar", 0, 33, 6);
  expect_right("first_lane", uint64_t{0xf8});
  EXPECT_EQ(out_[60], 77);
  expect_wrong("first_lane", 0, uint64_t{0xff});
}

TEST_P(CrossLane, Broadcast) {
  expect_right("broadcast", uint64_t{1} << 9, 9);
  EXPECT_EQ(out_[60], 77);
  expect_wrong("broadcast", 0, ~(uint64_t{1} << 9), 9);
}

TEST_P(CrossLane, Permutations) {
  expect_right("mirror", kAllLanes);
  expect_wrong("mirror", 15, ~uint64_t{1});
  expect_right("neighbours", kAllLanes);
  expect_wrong("neighbours", 6, ~(uint64_t{1} << 7));
}

TEST_P(CrossLane, Swaps) {
  expect_right("swapped", kAllLanes, 0);
  expect_right("swapped", uint64_t{0xff}, 0);
  expect_wrong("swapped", 8, uint64_t{0xff}, 1);
  if (GetParam() == Target::gfx950) {
    // v20's upper half goes to the lower half of v21.
    expect_right("swapped_halves", uint64_t{0xffffffff}, 0);
    expect_wrong("swapped_halves", 0, uint64_t{0xffffffff}, 1);
  }
}

TEST_P(CrossLane, MatricesReadAllLanes) {
  const auto out = array<float>(64);
  EXPECT_EQ(findings(run("matrix", {1}, {64}, out.data(), kAllLanes)), "");
  EXPECT_EQ(out[0], 4);
  const LaunchReport report = run("matrix", {1}, {64}, out.data(), kAllLanes >> 1);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.findings[0].kind, FindingKind::uninitialized_register);
  EXPECT_EQ(report.findings[0].lane, 63);
}

INSTANTIATE_TEST_SUITE_P(Targets, CrossLane, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
