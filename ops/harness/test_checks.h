// For the operations' test.cc: runs the checks of `weft check` inside GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ops/harness/check.h"

namespace weft::trial {

/// Every check case of an operation, on every instruction set of this machine, with several seeds.
inline void expect_right(const std::string& operation) {
  for (const uint64_t seed : {2, 3}) {
    CheckOptions options;
    options.selection.operations = {operation};
    options.seed = seed;
    const auto summary = check_operations(options, [](const CheckOutcome& outcome) {
      EXPECT_NE(outcome.verdict, CheckOutcome::Verdict::failed)
          << outcome.variant << ": " << outcome.message << "\nrepeat: " << outcome.repeat;
    });
    ASSERT_TRUE(summary.ok());
    EXPECT_GT(summary->passed, 0);
  }
}

}  // namespace weft::trial
