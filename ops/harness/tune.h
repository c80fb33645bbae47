// weft tune: which of the candidates is fastest for each bench case of an operation, measured, and
// written down as the table that the operation's dispatch includes. On a device that counts and
// keeps no time, candidates are ordered by their bounds from counts, which are no times and are not
// called that.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "ops/harness/select.h"

namespace weft::trial {

struct TuneOptions {
  Selection selection;  ///< over the bench cases
  uint64_t seed = 1;
  Device* device = nullptr;
  /// More than 1: candidates are timed both alone and in a row (BenchOptions::in_a_row), and the
  /// best has the least geometric mean of the two, for a plan has to serve both.
  int in_a_row = 1;
};

struct TunedCandidate {
  Plan plan;
  std::string mismatch;  ///< not empty: it is wrong, and was not timed
  double median = 0;     ///< seconds; where TuneOutcome::counted, the bound from counts
  double in_a_row = 0;   ///< seconds of each in a row, or 0: not asked for
};

/// Its times: "7.4 us, 2.9 in a row".
std::string to_text(const TunedCandidate& candidate);

struct TuneOutcome {
  SelectedCase selected;
  PlanKey key;
  std::string skipped;   ///< not empty: why there is nothing to measure
  bool counted = false;  ///< the device keeps no time
  /// Fastest first, those that are wrong last.
  std::vector<TunedCandidate> candidates;
};

/// Measures every candidate of every case, calling `report` after each case. Errors: usage (see
/// select_cases()), device.
Result<std::vector<TuneOutcome>> tune_operations(
    const TuneOptions& options, const std::function<void(const TuneOutcome&)>& report);

/// The table's row for an outcome whose first candidate is right: C++ that initialises a TunedPlan,
/// with the time, or the bound from counts, and that of the next candidate in a comment.
std::string table_row(const TuneOutcome& outcome, const DeviceInfo& device);
/// A table with `rows` in the place of those that it has for the same keys and devices.
std::string merge_table(std::string_view table, const std::vector<std::string>& rows);

}  // namespace weft::trial
