// weft check: every case of every operation on every instruction set this machine has, against the
// reference; whole and in pieces; with ordinary numbers and with NaN and infinities.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "ops/harness/select.h"

namespace weft::trial {

struct CheckOptions {
  Selection selection;
  uint64_t seed = 1;
};

struct CheckOutcome {
  enum class Verdict { passed, failed, skipped };
  SelectedCase selected;
  std::string variant;  ///< instruction set, and ", not finite" where NaN and infinities are put in
  Verdict verdict = Verdict::passed;
  std::string message;  ///< why it failed or was skipped
  std::string repeat;   ///< the command that repeats a failure
};

struct CheckSummary {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
};

/// Checks on the CPU, calling `report` after each outcome. Error (usage): see select_cases().
Result<CheckSummary> check_operations(const CheckOptions& options,
                                      const std::function<void(const CheckOutcome&)>& report);

}  // namespace weft::trial
