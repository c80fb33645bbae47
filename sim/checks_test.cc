// Each fault planted in sim/testdata/faults.hip is found, at its line, and nothing else is.
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class Faults : public KernelTest {
 protected:
  void SetUp() override {
    load("faults");
    options_.threads = 1;
  }

  /// "sim/testdata/faults.hip:12", the line that says FAULT and the kernel's name.
  static std::string fault_line(const std::string& kernel) {
    std::ifstream file(WEFT_SOURCE_DIR "/sim/testdata/faults.hip");
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const size_t at = line.find("FAULT " + kernel);
      const size_t end = at + 6 + kernel.size();
      if (at != std::string::npos && (end >= line.size() || line[end] == ':')) {
        return "faults.hip:" + std::to_string(number);
      }
    }
    return "no such line";
  }

  template <class... Arguments>
  void expect_fault(const char* kernel, FindingKind kind, const std::string& message, Dim3 block,
                    Arguments... arguments) {
    const LaunchReport report = run(kernel, {1}, block, arguments...);
    ASSERT_EQ(report.findings.size(), 1U) << findings(report);
    const Finding& finding = report.findings[0];
    EXPECT_EQ(finding.kind, kind) << finding.text();
    EXPECT_EQ(finding.kernel, kernel);
    EXPECT_NE(finding.message.find(message), std::string::npos) << finding.text();
    EXPECT_FALSE(finding.instruction.empty());
  }
  /// The source line of the only finding.
  template <class... Arguments>
  std::string line_of(const char* kernel, Dim3 block, Arguments... arguments) {
    const LaunchReport report = run(kernel, {1}, block, arguments...);
    const std::string source = report.findings.empty() ? "" : report.findings[0].source;
    return source.substr(source.rfind('/') == std::string::npos ? 0 : source.rfind('/') + 1);
  }
};

TEST_P(Faults, BelowScratch) {
  const auto out = array<int>(64);
  expect_fault("below_scratch", FindingKind::out_of_bounds,
               "it reaches byte -4 of 0 bytes of scratch", {64}, out.data());
}

/// What is known of the first wave's registers is not of those that go another way.
TEST_P(Faults, OtherWayThanTheFirst) {
  const auto out = array<int>(256);
  for (const auto& [kernel, kind] :
       {std::pair("register_of_the_first", FindingKind::uninitialized_register),
        std::pair("wait_of_the_first", FindingKind::missing_wait)}) {
    EXPECT_TRUE(run(kernel, {1}, {64}, out.data()).ok()) << kernel;
    const LaunchReport report = run(kernel, {3}, {64}, out.data());
    ASSERT_EQ(report.findings.size(), 1U) << kernel << findings(report);
    EXPECT_EQ(report.findings[0].kind, kind) << report.findings[0].text();
    EXPECT_EQ(report.findings[0].workgroup[0], 1U);
    EXPECT_EQ(report.findings[0].times, 2U);
  }
}

/// Found a million times: an end.
TEST_P(Faults, ForEver) {
  const auto out = array<int>(1);
  const LaunchReport report = run("past_the_end_for_ever", {1}, {64}, out.data());
  ASSERT_EQ(report.findings.size(), 1U) << findings(report);
  EXPECT_GE(report.findings[0].times, Finding::kMostTimes);
  EXPECT_LT(report.findings[0].times, 2 * Finding::kMostTimes);
  EXPECT_NE(report.findings[0].text().find("which ended the launch"), std::string::npos);
  EXPECT_EQ(line_of("past_the_end_for_ever", {64}, out.data()),
            fault_line("past_the_end_for_ever"));
}

TEST_P(Faults, OutOfBounds) {
  const auto out = array<float>(100);
  expect_fault("past_the_end", FindingKind::out_of_bounds,
               "0 bytes past the end of an allocation of 400 bytes", {128}, out.data());
  EXPECT_EQ(line_of("past_the_end", {128}, out.data()), fault_line("past_the_end"));
  const LaunchReport report = run("past_the_end", {1}, {128}, out.data());
  EXPECT_EQ(report.findings[0].wave, 1);
  EXPECT_EQ(report.findings[0].lane, 36);
  EXPECT_EQ(report.findings[0].times, 28U);
}

TEST_P(Faults, LastAddress) {
  const auto out = array<int>(4);
  for (const bool sanitize : {true, false}) {
    options_.sanitize = sanitize;
    expect_fault("at_the_last_address", FindingKind::out_of_bounds,
                 "address 0xfffffffffffffff8 (16 bytes) is in no allocation", {2}, out.data());
  }
}

TEST_P(Faults, BoundsAreCheckedWithoutSanitizer) {
  options_.sanitize = false;
  const auto out = array<float>(100);
  expect_fault("past_the_end", FindingKind::out_of_bounds, "past the end", {128}, out.data());
  expect_fault("lds_past_the_end", FindingKind::lds_out_of_bounds, "256 bytes of LDS", {64},
               out.data(), 60);
}

TEST_P(Faults, FreedMemory) {
  const auto out = array<float>(128);
  ASSERT_TRUE(device_.free(reinterpret_cast<uint64_t>(out.data())).ok());
  const LaunchReport report = run("past_the_end", {1}, {64}, out.data());
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, FindingKind::out_of_bounds);
}

TEST_P(Faults, LdsOutOfBounds) {
  const auto out = array<float>(64);
  expect_fault("lds_past_the_end", FindingKind::lds_out_of_bounds, "256 bytes of LDS", {64},
               out.data(), 60);
  EXPECT_EQ(line_of("lds_past_the_end", {64}, out.data(), 60), fault_line("lds_past_the_end"));
}

TEST_P(Faults, LoadBelowLds) {
  const auto in = array<int>(80);
  const auto out = array<int>(64);
  expect_fault("direct_load_below_lds", FindingKind::lds_out_of_bounds, "256 bytes of LDS", {64},
               in.data(), out.data());
}

TEST_P(Faults, LdsNeverWritten) {
  const auto out = array<float>(64);
  expect_fault("lds_never_written", FindingKind::uninitialized_lds, "never written", {64},
               out.data(), 60);
  EXPECT_EQ(line_of("lds_never_written", {64}, out.data(), 60), fault_line("lds_never_written"));
  EXPECT_TRUE(run("lds_never_written", {1}, {64}, out.data(), 0).ok());
}

TEST_P(Faults, RegisterNeverWritten) {
  const auto out = array<int>(64);
  expect_fault("register_never_written", FindingKind::uninitialized_register, "never written", {64},
               out.data());
}

TEST_P(Faults, LaneNeverWritten) {
  const auto out = array<int>(128);
  EXPECT_EQ(findings(run("lane_never_written", {2}, {64}, out.data(), 32U)), "");
  EXPECT_EQ(out[31], 8);
  EXPECT_EQ(out[96], 0);
  const LaunchReport report = run("lane_never_written", {2}, {64}, out.data(), 33U);
  ASSERT_EQ(report.findings.size(), 1U) << findings(report);
  EXPECT_EQ(report.findings[0].kind, FindingKind::uninitialized_register);
  EXPECT_EQ(report.findings[0].lane, 32);
  EXPECT_EQ(report.findings[0].times, 2U);
}

/// What nobody wrote holds the same in every run, whatever ran before.
TEST_P(Faults, NeverWrittenIsAlwaysTheSame) {
  const auto out = array<int>(64);
  for (const bool sanitize : {true, false}) {
    options_.sanitize = sanitize;
    for (const char* before : {"halves_one_by_one", "no_wait_lds"}) {
      run(before, {8}, {64}, out.data());
      EXPECT_EQ(run("register_never_written", {8}, {64}, out.data()).ok(), !sanitize);
      EXPECT_EQ(out[7], -1);
    }
  }
  const auto floats = array<float>(64);
  run("lds_never_written", {1}, {64}, floats.data(), 60);
  EXPECT_EQ(std::bit_cast<int>(floats[63]), -1);
  EXPECT_EQ(floats[3], 1);
  const auto two = array<int>(128);
  EXPECT_EQ(findings(run("stack_of_the_first", {2}, {64}, two.data())), "");
  EXPECT_EQ(two[5], 7);
  EXPECT_EQ(two[64 + 5], 0);
}

TEST_P(Faults, HalvesOfRegisters) {
  const auto out = array<int>(64);
  expect_fault("half_never_written", FindingKind::uninitialized_register, "never written", {64},
               out.data());
  const LaunchReport report = run("halves_one_by_one", {1}, {64}, out.data());
  EXPECT_EQ(findings(report), "");
  EXPECT_EQ(out[3], 2 * (3 << 16 | 3) + 3);
}

TEST_P(Faults, AtomicOnTheLastHalf) {
  const auto out = array<uint16_t>(3);
  const LaunchReport report = run("atomic_on_last_half", {1}, {64}, out.data());
  EXPECT_EQ(findings(report), "");
  EXPECT_EQ(out[2], 63 * 64 / 2);
}

/// Compilers read and write LDS at any address by instructions that name two of them.
TEST_P(Faults, PairsAnywhereInLds) {
  const auto out = array<int>(64);
  const LaunchReport report = run("unaligned_pairs", {1}, {64}, out.data());
  EXPECT_EQ(findings(report), "");
  EXPECT_EQ(out[5], 5 + 6);
}

TEST_P(Faults, MaskNeverWritten) {
  const auto out = array<int>(64);
  const LaunchReport report = run("mask_never_written", {1}, {64}, out.data());
  ASSERT_EQ(report.findings.size(), 1U) << findings(report);
  EXPECT_EQ(report.findings[0].kind, FindingKind::uninitialized_register);
  EXPECT_EQ(report.findings[0].lane, 0);
  // The lanes that are decided are no fault.
  EXPECT_EQ(out[4], 5);
}

TEST_P(Faults, NoWait) {
  const auto in = array<int>(64);
  const auto out = array<int>(64);
  expect_fault("no_wait", FindingKind::missing_wait, "v20", {64}, in.data(), out.data());
  expect_fault("no_wait_lds", FindingKind::missing_wait, "v20", {64}, out.data());
  expect_fault("direct_load_no_wait", FindingKind::missing_wait, "global_load_lds_dword", {64},
               in.data(), out.data());
}

TEST_P(Faults, LdsRace) {
  const auto out = array<float>(256);
  for (const char* kernel : {"race", "late_write", "own_reader_writes"}) {
    const LaunchReport report = run(kernel, {1}, {256}, out.data());
    bool at_line = false;
    for (const Finding& finding : report.findings) {
      at_line |= finding.kind == FindingKind::lds_race &&
                 finding.source.find(fault_line(kernel)) != std::string::npos;
    }
    EXPECT_TRUE(at_line) << findings(report);
  }
}

TEST_P(Faults, AFlagOrdersAsABarrierDoes) {
  const auto out = array<float>(64);
  const LaunchReport report = run("flag_instead_of_barrier", {1}, {128}, out.data());
  EXPECT_EQ(findings(report), "");
  EXPECT_EQ(out[63], 63);
}

TEST_P(Faults, Hang) {
  options_.hang_seconds = 0.2;
  const auto flag = array<unsigned>(1);
  expect_fault("waits_for_nobody", FindingKind::hang, "nothing has changed", {64}, flag.data());
}

TEST_P(Faults, Trap) { expect_fault("traps", FindingKind::trap, "trap", {64}); }

TEST_P(Faults, UnknownInstruction) {
  const LaunchReport report = run("unknown", {1}, {64});
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].kind, FindingKind::unknown_instruction);
  EXPECT_EQ(report.findings[0].instruction, "ds_gws_sema_v gds");
  EXPECT_FALSE(report.findings[0].source.empty());
}

INSTANTIATE_TEST_SUITE_P(Targets, Faults, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim
