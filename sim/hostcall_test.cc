// printf in kernels (sim/testdata/printing.hip): what comes out, from buffers and from host calls.
#include "sim/hostcall.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

class Printing : public KernelTest {
 protected:
  void SetUp() override { load("printing"); }

  std::span<char> text(const std::string& characters) {
    return array(std::vector<char>(characters.c_str(), characters.c_str() + characters.size() + 1));
  }
  /// What a launch prints, its findings behind.
  template <class... Arguments>
  std::string printed(const char* kernel, Dim3 grid, Dim3 block, Arguments... arguments) {
    testing::internal::CaptureStdout();
    const LaunchReport report = run(kernel, grid, block, arguments...);
    return testing::internal::GetCapturedStdout() + findings(report);
  }
};

TEST_P(Printing, Buffered) {
  const auto name = text("somebody with a long name");
  std::string expected;
  for (int lane = 0; lane < 3; ++lane) {
    expected +=
        fmt::format("thread {}:  3.50|abc   |somebody with a long name|1099511627776%\n", lane);
  }
  EXPECT_EQ(printed("buffered", {1}, {64}, 7, name.data()), expected);
  EXPECT_EQ(printed("buffered_format", {1}, {1}, text("<%03d>\n").data(), 7), "<007>\n");
}

TEST_P(Printing, BufferOverflow) {
  const std::string out = printed("buffered_much", {600}, {256});
  const auto lines = std::count(out.begin(), out.end(), '\n');
  // Control word, number of the format, 41 characters padded to 48.
  EXPECT_EQ(lines, (4096 * 1024 - 16) / (4 + 8 + 48));
}

TEST_P(Printing, HostCalls) {
  const auto format = text("%d %s %.2f\n");
  const auto name = text("a name that takes more than one of the seven words that go with a call");
  for (const int threads : {1, 2}) {
    options_.threads = threads;
    const auto out = array<int>(6 * 256);
    const std::string got =
        printed("called", {6}, {256}, out.data(), format.data(), name.data(), 0);
    std::vector<std::string> lines;
    std::vector<std::string> expected;
    for (size_t at = 0; at < got.size();) {
      const size_t end = std::min(got.find('\n', at), got.size() - 1) + 1;
      lines.push_back(got.substr(at, end - at));
      at = end;
    }
    for (int t = 0; t < 6 * 256; ++t) {
      if (t % 32 != 5) {
        expected.push_back(fmt::format("{} {} {:.2f}\n", t, name.data(), t * 0.25));
        ASSERT_EQ(out[static_cast<size_t>(t)], static_cast<int>(expected.back().size()));
      }
    }
    std::sort(lines.begin(), lines.end());
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(lines, expected);
  }
}

TEST_P(Printing, NoSuchStreamOrService) {
  const auto out = array<int>(64);
  const auto format = text("%d %s %.2f\n");
  EXPECT_EQ(printed("called", {1}, {64}, out.data(), format.data(), format.data(), 2), "");
  EXPECT_EQ(out[0], -1);
  const LaunchReport report = run("calls_service", {4}, {64}, 1U);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.findings[0].message.find("service 1"), std::string::npos) << findings(report);
}

/// Memory for malloc(): of one kernel, seen and given back by another.
TEST_P(Printing, MemoryForMalloc) {
  const auto out = array<uint64_t>(2);
  constexpr uint64_t kBytes = 3 << 20;
  LaunchReport report = run("takes_piece", {1}, {1}, kBytes, out.data());
  ASSERT_TRUE(report.ok()) << findings(report);
  EXPECT_EQ(out[0], 0U);
  const uint64_t piece = out[1];
  EXPECT_NE(piece, 0U);
  EXPECT_EQ(piece % (2 << 20), 0U);
  report = run("takes_piece", {1}, {1}, kBytes, out.data());
  ASSERT_TRUE(report.ok()) << findings(report);
  EXPECT_EQ(out[0], piece);
  EXPECT_EQ(out[1], 77U);
}

INSTANTIATE_TEST_SUITE_P(Targets, Printing, testing::ValuesIn(cdna::kTargets), target_name);

uint64_t word(double x) { return std::bit_cast<uint64_t>(x); }

TEST(FormatPrintf, Conversions) {
  uint64_t text = 0;
  std::memcpy(&text, "text", 4);
  const auto minus_one = ~uint64_t{0};
  EXPECT_EQ(format_printf("", {}), "");
  EXPECT_EQ(format_printf("100%% %", {}), "100% ");
  EXPECT_EQ(format_printf("%d %i %u %ld %x %hhd", std::vector{minus_one, minus_one, minus_one,
                                                              minus_one, minus_one, uint64_t{257}}),
            "-1 -1 4294967295 -1 ffffffff 1");
  EXPECT_EQ(format_printf("%lf|%+.1e|%Lg|%c|%5c", std::vector{word(0.5), word(-1e10), word(2.5),
                                                              uint64_t{'x'}, uint64_t{'y'}}),
            "0.500000|-1.0e+10|2.5|x|    y");
  EXPECT_EQ(format_printf("%s|%6s|%-6s|%.2s|", std::vector{text, text, text, text}),
            "text|  text|text  |te|");
  EXPECT_EQ(format_printf("%*d|%.*f|%-*s|", std::vector{uint64_t{4}, uint64_t{7}, uint64_t{1},
                                                        word(2.25), uint64_t{6}, text}),
            "   7|2.2|text  |");
  EXPECT_EQ(format_printf("a%nb%d", std::vector{uint64_t{1}, uint64_t{2}}), "ab2");
}

TEST(FormatPrintf, WhatIsDamaged) {
  EXPECT_EQ(format_printf("a %d b %d c", std::vector{uint64_t{1}}), "a 1 b ");
  EXPECT_EQ(format_printf("a %!d", std::vector{uint64_t{1}}), "a ");
  EXPECT_EQ(format_printf("a %99999999d", std::vector{uint64_t{1}}), "a ");
  EXPECT_EQ(format_printf("a %***d", std::vector<uint64_t>(4)), "a ");
  EXPECT_EQ(format_printf("%.*d", std::vector{~uint64_t{0}, uint64_t{3}}), "3");
  // A string without an end is as long as what there is.
  EXPECT_EQ(format_printf("%s", std::vector<uint64_t>(2, 0x6161616161616161)), "aaaaaaaaaaaaaaaa");
}

}  // namespace
}  // namespace weft::sim
