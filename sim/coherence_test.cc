// Kernels of sim/testdata/coherence.hip: what is right is not accused, what is wrong is found, by
// its kind and at its instruction, in whatever order waves run.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "sim/memory.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

/// Orders in which waves run: as they come, and some at random with caches that keep old copies.
constexpr uint64_t kSeeds[] = {0, 1, 2, 3, 4, 5};

class CoherenceTest : public KernelTest {
 protected:
  void SetUp() override {
    load("coherence");
    options_.threads = 1;
  }

  /// Runs a kernel of coherence.hip on fresh memory; `out` afterwards is in out_.
  LaunchReport say(const char* kernel, uint32_t groups, uint32_t threads, uint32_t to) {
    const auto data = array<int>(size_t{2} * groups * std::max(threads, 64U));
    const auto flag = array<int>(64);
    out_ = array<int>(size_t{groups} * threads);
    return run(kernel, {groups}, {threads}, data.data(), flag.data(), out_.data(), to, 0U);
  }

  std::span<int> out_;
};

struct Message {
  const char* kernel;
  uint32_t to;  ///< workgroup 8 is on workgroup 0's XCD, 1 is not
  FindingKind kind = FindingKind::trap;
};

TEST_P(CoherenceTest, MessagesThatAreRight) {
  for (const Message& m :
       {Message{"right_agent", 1}, Message{"right_agent", 8}, Message{"right_system", 1},
        Message{"right_stored_through", 1}, Message{"right_loaded_past", 1},
        Message{"right_words_alone", 1}, Message{"right_streamed", 1}, Message{"right_in_xcd", 8},
        Message{"right_through_system", 1}, Message{"right_builtins", 1},
        Message{"right_tagged", 1}, Message{"right_read_before", 1}, Message{"right_chain", 2},
        Message{"right_both_halves", 2}, Message{"right_both_halves_again", 2}}) {
    for (const uint64_t seed : kSeeds) {
      options_.seed = seed;
      const LaunchReport report = say(m.kernel, m.to + 1, 64, m.to);
      EXPECT_TRUE(report.ok()) << m.kernel << ", seed " << seed << ": " << findings(report);
      EXPECT_EQ(std::ranges::count(out_.first(64), 7), 64) << m.kernel << ", seed " << seed;
    }
  }
}

TEST_P(CoherenceTest, WorkgroupsThatAreRight) {
  const auto right = [&](const char* kernel, uint32_t groups, uint32_t threads, uint32_t to) {
    for (const uint64_t seed : kSeeds) {
      options_.seed = seed;
      const LaunchReport report = say(kernel, groups, threads, to);
      EXPECT_TRUE(report.ok()) << kernel << ", seed " << seed << ": " << findings(report);
    }
    return out_[0];
  };
  EXPECT_EQ(right("right_by_one_wave", 2, 256, 1), 7);
  EXPECT_EQ(right("right_last_adds", 40, 64, 40), 40);
  EXPECT_EQ(right("right_grid_barrier", 20, 64, 20), 8);
  EXPECT_GE(right("right_lock", 20, 64, 0), 1);
  EXPECT_EQ(right("right_handed_back", 2, 64, 1), 10);
  EXPECT_EQ(right("right_in_group", 3, 256, 0), 255);
  EXPECT_EQ(right("right_neighbours", 30, 1, 0), 4);
  EXPECT_EQ(right("right_shared_lines", 1, 192, 0), 191);
  EXPECT_EQ(right("right_same_value", 9, 64, 0), 1);
  EXPECT_EQ(right("right_histogram", 9, 64, 0), 1);
  EXPECT_EQ(right("right_repeated_in_place", 3, 256, 0), 1);
  EXPECT_EQ(right("right_repeated_beyond_buffer", 3, 256, 0), 1);
  EXPECT_EQ(right("right_swap_loop", 9, 64, 0), 1);
  EXPECT_EQ(right("right_scalar_swap_loop", 9, 64, 0), 1);
}

/// Each is found by its kind, whatever the order. Of two workgroups that do the same wrong thing,
/// the second may have waited already where the first had not: then there are two kinds.
TEST_P(CoherenceTest, PlantedFaults) {
  constexpr auto kUnseen = FindingKind::unseen_store;
  constexpr auto kStale = FindingKind::stale_read;
  constexpr auto kRace = FindingKind::global_race;
  constexpr auto kWait = FindingKind::missing_wait;
  const struct {
    Message message;
    uint32_t groups = 2;
    uint32_t threads = 64;
    FindingKind also = FindingKind::trap;
  } faults[] = {
      {{"flag_without_sc1", 1, kUnseen}},
      {{"poll_without_sc1", 1, kStale}},
      {{"poll_of_workgroup", 1, kStale}},
      {{"no_write_back", 1, kUnseen}},
      {{"write_back_without_sc1", 1, kUnseen}},
      {{"write_back_not_waited_for", 1, kWait}},
      {{"store_not_waited_for", 1, kWait}},
      {{"store_not_waited_for", 8, kWait}, 9},
      {{"no_invalidate", 1, kStale}},
      {{"invalidate_without_bits", 1, kStale}},
      {{"invalidate_of_workgroup", 1, kStale}},
      {{"no_invalidate_in_xcd", 8, kStale}, 9},
      {{"data_stored_for_workgroup", 1, kUnseen}},
      {{"invalidate_too_early", 1, kStale}},
      {{"invalidate_before_wait", 1, kStale}},
      {{"write_back_too_late", 1, kUnseen}},
      {{"no_flag", 1, kRace}},
      {{"written_too_soon", 1, kRace}},
      {{"two_write", 1, kRace}},
      {{"one_half", 2, kRace}, 3},
      {{"one_half_again", 2, kRace}, 3},
      {{"no_barrier_in_group", 0, kRace}, 1, 128},
      {{"no_barrier_in_shared_lines", 0, kRace}, 1, 192},
      {{"third_in_shared_line", 72, kRace}, 1, 192},
      {{"third_in_shared_line", 88, kRace}, 1, 192},
      {{"scalar_load_of_data", 0, kStale}, 1},
      {{"counter_read_as_data", 0, kStale}},
      {{"unlocked_too_soon", 0, kWait}, 2, 64, kUnseen},
      {{"arrived_too_soon", 2, kWait}, 2, 64, kUnseen},
  };
  for (const auto& [m, groups, threads, also] : faults) {
    for (const uint64_t seed : kSeeds) {
      options_.seed = seed;
      const LaunchReport report = say(m.kernel, groups, threads, m.to);
      ASSERT_FALSE(report.ok()) << m.kernel << ", seed " << seed;
      EXPECT_TRUE(std::ranges::any_of(report.findings,
                                      [kind = m.kind, other = also](const Finding& finding) {
                                        return finding.kind == kind || finding.kind == other;
                                      }))
          << m.kernel << ", seed " << seed << ": " << findings(report);
      EXPECT_NE(report.findings[0].source.find("coherence.hip:"), std::string::npos);
    }
  }
}

/// The same kernels as two launches at the same time, workgroup 0 on one device of a node and
/// workgroup 1 on another; everything lies in the first one's memory.
class TwoDevicesCoherence : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    code_ = test_kernels("coherence", GetParam());
    if (code_.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    memory_->set_peer(1, 0, true);
    for (int k = 0; k < 2; ++k) {
      modules_[k] = devices_[k].load(code_).value();
    }
  }
  std::vector<Finding> say(const char* kernel, Placement placement = {0, Grain::fine}) {
    const uint64_t data = memory_->allocate(4096, placement).value();
    struct {
      uint64_t data, flag, out;
      uint32_t to, first;
    } arguments{data, data + 1024, data + 2048, 1, 0};
    if (std::string_view(kernel).find("atomic") != std::string_view::npos) {
      arguments.to = 2;  // how many count
    }
    std::vector<Finding> findings;
    std::mutex mutex;
    const auto launch = [&](uint32_t device) {
      auto given = arguments;
      given.first = device;
      const auto report = devices_[device].launch(*modules_[device]->kernel(kernel), {1}, {64}, 0,
                                                  std::as_bytes(std::span(&given, 1)));
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(report.ok());
      findings.insert(findings.end(), report.value().findings.begin(),
                      report.value().findings.end());
    };
    // The reader first: a launch that has ended before it has told it everything.
    std::thread second(launch, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    launch(0);
    second.join();
    return findings;
  }

  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  Device devices_[2] = {Device(GetParam(), memory_), Device(GetParam(), memory_)};
  std::shared_ptr<Module> modules_[2];
  std::vector<std::byte> code_;
};

TEST_P(TwoDevicesCoherence, Right) {
  for (const char* kernel : {"right_system", "right_through_system", "right_atomic_of_system"}) {
    for (int time = 0; time < 5; ++time) {
      const std::vector<Finding> findings = say(kernel);
      EXPECT_TRUE(findings.empty()) << kernel << ": " << findings[0].text();
    }
  }
  const std::vector<Finding> findings = say("right_host_told", {kHost, Grain::fine});
  EXPECT_TRUE(findings.empty()) << findings[0].text();
}

TEST_P(TwoDevicesCoherence, PlantedFaults) {
  const struct {
    const char* kernel;
    FindingKind kind;
  } faults[] = {
      {"write_back_of_agent", FindingKind::unseen_store},
      {"flag_of_agent", FindingKind::narrow_scope},
      {"poll_of_agent", FindingKind::narrow_scope},
      {"invalidate_of_agent", FindingKind::stale_read},
      {"atomic_of_agent", FindingKind::narrow_scope},
  };
  for (const auto& fault : faults) {
    // On a busy machine the reader may begin late all the same.
    bool found = false;
    for (int time = 0; time < 20 && !found; ++time) {
      for (const Finding& f : say(fault.kernel)) {
        found |= f.kind == fault.kind;
      }
    }
    EXPECT_TRUE(found) << fault.kernel;
  }
  const std::vector<Finding> told = say("host_told_too_soon", {kHost, Grain::fine});
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told[0].kind, FindingKind::missing_wait);
}

INSTANTIATE_TEST_SUITE_P(Targets, TwoDevicesCoherence,
                         testing::Values(Target::gfx942, Target::gfx950), target_name);

INSTANTIATE_TEST_SUITE_P(Targets, CoherenceTest, testing::Values(Target::gfx942, Target::gfx950),
                         target_name);

}  // namespace
}  // namespace weft::sim
