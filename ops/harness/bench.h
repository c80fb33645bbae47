// weft bench: how near an operation comes to what the machine can do. Each case is checked against
// the reference and then timed on the same data, caches flushed before every run; beside each case
// the machine's bandwidth and peak are measured, for they drift.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/harness/select.h"

namespace weft::trial {

struct BenchOptions {
  Selection selection;
  int threads = 1;  ///< worker threads, each with an equal piece of the work
  uint64_t seed = 1;
};

struct BenchOutcome {
  SelectedCase selected;
  std::string mismatch;  ///< not empty: it is wrong, and was not timed
  int64_t runs = 0;
  double median = 0;  ///< seconds a run
  double best = 0;
  double slowest = 0;
  Work work;
  double bandwidth = 0;  ///< bytes per second that the same threads read
  double peak = 0;       ///< flops per second that they reach, of work.peak

  /// Seconds that one run takes at least on this machine. A run whose writes fit the caches can be
  /// faster: they reach the memory later.
  double limit() const;
  bool memory_bound() const;
};

struct BenchReport {
  std::vector<BenchOutcome> outcomes;
  /// Geometric mean of limit / median over the cases that are right.
  double mean_share = 0;
  int64_t failed = 0;
};

/// Benches on the CPU with current_isa(), calling `report` after each case. Errors: usage (see
/// select_cases()), device (no memory).
Result<BenchReport> bench_operations(const BenchOptions& options,
                                     const std::function<void(const BenchOutcome&)>& report);

}  // namespace weft::trial
