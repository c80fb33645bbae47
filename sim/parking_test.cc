// Waves that wait cost next to nothing, those that wait for ever are told, and those that work for
// long are left alone (sim/testdata/waiting.hip).
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include <fmt/format.h>

#include "base/clock.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class Parking : public KernelTest {
 protected:
  void SetUp() override { load("waiting"); }

  static uint64_t instructions(const LaunchReport& report) {
    const auto& each = report.counters.instructions;
    return std::accumulate(each.begin(), each.end(), uint64_t{0});
  }
  void expect_hang(const LaunchReport& report, const char* text) {
    ASSERT_EQ(report.findings.size(), 1U) << findings(report);
    EXPECT_EQ(report.findings[0].kind, FindingKind::hang);
    EXPECT_NE(report.findings[0].message.find(text), std::string::npos) << findings(report);
  }
};

TEST_P(Parking, ManyWaitForOne) {
  constexpr uint32_t kGroups = 304;
  const auto flag = array<unsigned>(1);
  const auto out = array<unsigned>((kGroups + 1) * 256);
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    flag[0] = 0;
    const LaunchReport alone = run("wait_for_one", {1}, {256}, flag.data(), out.data(), 300);
    EXPECT_EQ(findings(alone), "");
    flag[0] = 0;
    const LaunchReport all = run("wait_for_one", {kGroups}, {256}, flag.data(), out.data(), 300);
    EXPECT_EQ(findings(all), "");
    for (size_t k = 0; k < kGroups * 256; ++k) {
      ASSERT_EQ(out[k], 1 + k / 256);
    }
    // A tenth of what a workgroup that works executes, while it waits and around it.
    EXPECT_LT(instructions(all) - instructions(alone), instructions(alone) * (kGroups - 1) / 10);
  }
}

TEST_P(Parking, OneWaveNotesWhileItWaits) {
  constexpr uint32_t kGroups = 304;
  const auto flag = array<unsigned>(1);
  const auto out = array<unsigned>(kGroups * 64);
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    uint64_t cost[2];
    for (const bool all : {false, true}) {
      flag[0] = 0;
      const LaunchReport report =
          run("wait_and_note", {all ? kGroups : 1}, {64}, flag.data(), out.data(), 100'000);
      EXPECT_EQ(findings(report), "");
      cost[all ? 1 : 0] = instructions(report);
    }
    EXPECT_LT(cost[1] - cost[0], cost[0] * (kGroups - 1) / 10);
  }
}

/// The time that 303 waiting workgroups cost, against that of the one they wait for. They may cost
/// a tenth of it each.
TEST_P(Parking, TimeOfWaitingSlow) {
  constexpr uint32_t kGroups = 304;
  const auto flag = array<unsigned>(1);
  const auto out = array<unsigned>((kGroups + 1) * 256);
  options_.threads = 1;
  double seconds[2];
  for (const bool all : {false, true}) {
    flag[0] = 0;
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(
        findings(run("wait_for_one", {all ? kGroups : 1}, {256}, flag.data(), out.data(), 20'000)),
        "");
    seconds[all ? 1 : 0] = seconds_since(begin);
  }
  fmt::print("{}: {:.2f} s alone, {:.2f} s with {} that wait\n", cdna::name_of(GetParam()),
             seconds[0], seconds[1], kGroups - 1);
  EXPECT_LT(seconds[1] - seconds[0], 0.1 * (kGroups - 1) * seconds[0]);
}

TEST_P(Parking, WavesWaitForAWave) {
  const auto out = array<unsigned>(1024);
  const LaunchReport alone = run("wait_for_wave", {1}, {64}, out.data(), 200'000);
  EXPECT_EQ(findings(alone), "");
  const LaunchReport all = run("wait_for_wave", {1}, {1024}, out.data(), 200'000);
  EXPECT_EQ(findings(all), "");
  EXPECT_LT(instructions(all) - instructions(alone), instructions(alone) * 15 / 10);
}

TEST_P(Parking, WakesInTime) {
  constexpr uint32_t kGroups = 100;
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    const auto words = array<unsigned>(kGroups);
    const auto out = array<unsigned>(1);
    EXPECT_EQ(findings(run("gather", {kGroups}, {64}, words.data(), out.data())), "");
    EXPECT_EQ(out[0], 1U);
    const auto lock = array<unsigned>(1);
    const auto sum = array<unsigned>(1);
    EXPECT_EQ(findings(run("lock", {kGroups}, {64}, lock.data(), sum.data(), 5)), "");
    EXPECT_EQ(sum[0], 500U);
  }
}

/// Workgroups that wait at a barrier of the whole grid, asking over barriers of their own.
TEST_P(Parking, WorkgroupsExchangeWords) {
  constexpr uint32_t kGroups = 304;
  constexpr unsigned kRounds = 2;
  const auto words = array<unsigned>(2 * kGroups);
  const auto out = array<unsigned>(kGroups * 256);
  const auto mixed = [](unsigned x, int n) {
    for (int k = 0; k < n; ++k) {
      x = (x ^ x >> 7) * 0x9e3779b9U + static_cast<unsigned>(k);
    }
    return x;
  };
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    uint64_t cost[2];
    for (const bool all : {false, true}) {
      const auto counter = array<unsigned>(1);
      constexpr int kWork = 1500;
      const LaunchReport report = run("exchange", {kGroups}, {256}, counter.data(), words.data(),
                                      out.data(), kRounds, kWork, all ? 1U : 0U);
      EXPECT_EQ(findings(report), "");
      for (unsigned k = 0; k < kGroups; ++k) {
        const unsigned x = k + 2 * ((k + 1) % kGroups) + (k + 2) % kGroups;
        unsigned worked = 255;
        for (unsigned round = 0; round < kRounds; ++round) {
          worked = all || k == round ? mixed(worked, kWork) : worked;
        }
        ASSERT_EQ(out[k * 256 + 255], x ^ worked) << k;
      }
      cost[all ? 1 : 0] = instructions(report);
    }
    EXPECT_LT(cost[0], cost[1] / 10);
  }
}

TEST_P(Parking, GivingUpIsNoHang) {
  options_.hang_seconds = 5;
  const auto flag = array<unsigned>(1);
  const auto out = array<unsigned>(64);
  EXPECT_EQ(findings(run("gives_up", {1}, {64}, flag.data(), out.data(), 300'000)), "");
  EXPECT_EQ(out[0], 300'000U);
}

TEST_P(Parking, EndlessStoresAreAHang) {
  options_.hang_seconds = 0.1;
  const auto out = array<unsigned>(304);
  for (const unsigned step : {0U, 1U}) {
    for (const uint32_t groups : {1U, 304U}) {
      expect_hang(run("stores_for_ever", {groups}, {256}, out.data(), step),
                  "no workgroup has begun or ended");
    }
  }
}

TEST_P(Parking, WaitingForEverIsAHang) {
  options_.hang_seconds = 0.1;
  const auto lock = array<unsigned>(1);
  const auto sum = array<unsigned>(1);
  lock[0] = 1;
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    expect_hang(run("lock", {304}, {64}, lock.data(), sum.data(), 1), "nothing has changed");
  }
}

TEST_P(Parking, LongWorkIsNoHang) {
  // Several times what would be a hang, with a line of memory now and then.
  options_.hang_seconds = 0.05;
  constexpr int kLines = 100;
  const auto in = array<unsigned>(32 * kLines);
  const auto out = array<unsigned>(64);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(findings(run("slow_walk", {1}, {64}, in.data(), out.data(), kLines, 50'000)), "");
  EXPECT_GT(seconds_since(begin), 2 * options_.hang_seconds);
}

INSTANTIATE_TEST_SUITE_P(Targets, Parking, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
