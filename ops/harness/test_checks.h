// For the operations' test.cc: runs the checks of `weft check` inside GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "arch/device.h"
#include "ops/harness/check.h"

namespace weft::trial {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Every check case of an operation, on every instruction set of this machine. The sanitized build
/// has other numbers.
inline void expect_right(const std::string& operation) {
  CheckOptions options;
  options.selection.operations = {operation};
  options.seed = kSanitized ? 2 : 3;
  const auto summary = check_operations(options, [](const CheckOutcome& outcome) {
    EXPECT_NE(outcome.verdict, CheckOutcome::Verdict::failed)
        << outcome.variant << ": " << outcome.message << "\nrepeat: " << outcome.repeat;
  });
  ASSERT_TRUE(summary.ok());
  EXPECT_GT(summary->passed, 0);
}

/// The check cases on an NVIDIA GPU, or on the interpreter of PTX; skipped where there is neither.
inline void expect_right_on_cuda(const std::string& operation) {
  const auto device = open_device("cuda");
  if (!device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  CheckOptions options;
  options.selection.operations = {operation};
  options.seed = 2;
  options.quick = true;
  options.device = device->get();
  const auto summary = check_operations(options, [](const CheckOutcome& outcome) {
    EXPECT_NE(outcome.verdict, CheckOutcome::Verdict::failed)
        << outcome.variant << ": " << outcome.message << "\nrepeat: " << outcome.repeat;
  });
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_GT(summary->passed, 0);
}

}  // namespace weft::trial
