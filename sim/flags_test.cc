// What orders waves in shared memory and what does not (sim/testdata/flags.hip): the sanitizer must
// say nothing of what is right and something of what is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class Flags : public KernelTest {
 protected:
  void SetUp() override {
    load("flags");
    options_.threads = 1;
  }

  /// Expects findings of this kind and of no other.
  static void expect_only(const LaunchReport& report, FindingKind kind) {
    EXPECT_FALSE(report.findings.empty());
    for (const Finding& finding : report.findings) {
      EXPECT_EQ(finding.kind, kind) << finding.text();
    }
  }
  std::vector<int> numbers(size_t count) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), 0);
    return values;
  }
};

TEST_P(Flags, Flag) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("flag", {1}, {128}, out.data(), 0, 0)), "");
  EXPECT_EQ(std::vector<int>(out.begin(), out.end()), numbers(64));
  expect_only(run("flag", {1}, {128}, out.data(), 1, 0), FindingKind::lds_race);
  expect_only(run("flag", {1}, {128}, out.data(), 0, 1), FindingKind::lds_race);
}

TEST_P(Flags, Mailbox) {
  const auto in = array(numbers(64));
  const auto out = array<int>(3 * 64);
  for (options_.seed = 0; options_.seed <= 2; ++options_.seed) {
    EXPECT_EQ(findings(run("mailbox", {1}, {128}, in.data(), out.data(), 0)), "");
    for (int k = 0; k < 3 * 64; ++k) {
      ASSERT_EQ(out[static_cast<size_t>(k)], (63 - k % 64) * (k / 64 + 1) + k / 64 + 1);
    }
    expect_only(run("mailbox", {1}, {128}, in.data(), out.data(), 1), FindingKind::lds_race);
  }
}

TEST_P(Flags, UnoptimisedFlag) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("unoptimised_flag", {1}, {128}, out.data(), 0)), "");
  EXPECT_EQ(std::vector<int>(out.begin(), out.end()), numbers(64));
  expect_only(run("unoptimised_flag", {1}, {128}, out.data(), 1), FindingKind::lds_race);
}

TEST_P(Flags, UnoptimisedReplies) {
  const auto out = array<int>(128);
  for (options_.seed = 0; options_.seed <= 8; ++options_.seed) {
    EXPECT_EQ(findings(run("unoptimised_replies", {1}, {128}, out.data())), "") << options_.seed;
  }
}

TEST_P(Flags, WhatNobodyWaitsForIsNoFlag) {
  const auto out = array<int>(64);
  expect_only(run("unread_flag", {1}, {128}, out.data()), FindingKind::lds_race);
  expect_only(run("bound", {1}, {128}, out.data()), FindingKind::lds_race);
}

TEST_P(Flags, Chain) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("chain", {1}, {256}, out.data())), "");
  for (int l = 0; l < 64; ++l) {
    EXPECT_EQ(out[static_cast<size_t>(l)], 5 * l + 384);
  }
}

TEST_P(Flags, Ring) {
  const int n = 100;
  const auto in = array(numbers(n * 64));
  const auto out = array<int>(2 * n * 64);
  EXPECT_EQ(findings(run("ring", {1}, {192}, in.data(), out.data(), n, 0, 4)), "");
  for (size_t k = 0; k < out.size(); ++k) {
    ASSERT_EQ(out[k], in[k % in.size()]);
  }
  // Waves that take long turns may find all flags as if they had been set in time. A slot may be
  // read before it was filled at all.
  for (options_.seed = 1; options_.seed <= 3; ++options_.seed) {
    const auto raced = [](const Finding& f) { return f.kind == FindingKind::lds_race; };
    const LaunchReport early = run("ring", {1}, {192}, in.data(), out.data(), n, 1, 4);
    EXPECT_TRUE(std::ranges::any_of(early.findings, raced)) << findings(early);
    expect_only(run("ring", {1}, {192}, in.data(), out.data(), n, 0, n), FindingKind::lds_race);
  }
}

TEST_P(Flags, Locks) {
  const auto out = array<int>(1);
  const int sum = 4 * 50 * 49 / 2;
  EXPECT_EQ(findings(run("spin_lock", {1}, {256}, out.data(), 50, 0)), "");
  EXPECT_EQ(out[0], sum);
  EXPECT_EQ(findings(run("ticket", {1}, {256}, out.data(), 50)), "");
  EXPECT_EQ(out[0], sum);
  expect_only(run("spin_lock", {1}, {256}, out.data(), 50, 1), FindingKind::lds_race);
}

TEST_P(Flags, AtomicsWaitForStores) {
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("atomic_waits", {1}, {128}, out.data())), "");
  EXPECT_EQ(std::vector<int>(out.begin(), out.end()), numbers(64));
}

TEST_P(Flags, SharedMemoryKeepsTheOrderOfAWave) {
  const auto in = array(numbers(64));
  const auto out = array<int>(64);
  EXPECT_EQ(findings(run("unwaited", {1}, {128}, in.data(), out.data(), 0)), "");
  expect_only(run("unwaited", {1}, {128}, in.data(), out.data(), 1), FindingKind::missing_wait);
}

TEST_P(Flags, SameValues) {
  const auto out = array<int>(256);
  EXPECT_EQ(findings(run("same_values", {1}, {256}, out.data(), 4)), "");
  EXPECT_EQ(out[200], 70);
  EXPECT_EQ(findings(run("same_bytes", {1}, {256}, out.data())), "");
  EXPECT_EQ(out[200], 55);
  EXPECT_EQ(findings(run("same_values_again", {1}, {256}, out.data())), "");
  EXPECT_EQ(out[200], 8);
}

TEST_P(Flags, OtherValuesRace) {
  const auto out = array<int>(256);
  for (const int other : {0, 1, 3}) {
    expect_only(run("same_values", {1}, {256}, out.data(), other), FindingKind::lds_race);
  }
  expect_only(run("same_values_read_early", {1}, {256}, out.data()), FindingKind::lds_race);
}

TEST_P(Flags, AtomicsThroughAnyPointer) {
  const auto out = array<int>(2);
  EXPECT_EQ(findings(run("flat_atomics", {1}, {256}, out.data(), 1)), "");
  EXPECT_EQ(out[0], 256);
}

INSTANTIATE_TEST_SUITE_P(Targets, Flags, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
