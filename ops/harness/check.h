// weft check: every case of every operation against the reference, with ordinary numbers and with
// NaN and infinities. On the CPU: on every instruction set this machine has, whole and in pieces.
// On another device: with the plan of the dispatch, or all that could be chosen; twice, for the
// same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "base/result.h"
#include "ops/harness/select.h"

namespace weft::trial {

struct CheckOptions {
  Selection selection;
  uint64_t seed = 1;
  Device* device = nullptr;  ///< null: the CPU
  bool all_plans = false;    ///< on a device: every candidate, not the dispatch's choice alone
  bool quick = false;        ///< on a device: without the large cases
};

struct CheckOutcome {
  enum class Verdict { passed, failed, skipped };
  SelectedCase selected;
  /// Instruction set or plan, and ", not finite" where NaN and infinities are put in.
  std::string variant;
  Verdict verdict = Verdict::passed;
  std::string message;  ///< why it failed or was skipped
  std::string repeat;   ///< the command that repeats a failure
};

struct CheckSummary {
  int64_t passed = 0;
  int64_t failed = 0;
  int64_t skipped = 0;
};

/// The cases that are checked so.
std::set<Use> uses_of_check(const CheckOptions& options);

/// Calls `report` after each outcome. Errors: usage (see select_cases()), device (it is lost: what
/// it was doing then is reported as a failure first).
Result<CheckSummary> check_operations(const CheckOptions& options,
                                      const std::function<void(const CheckOutcome&)>& report);

}  // namespace weft::trial
