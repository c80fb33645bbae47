// weft bench: how near an operation comes to what the machine can do. Each case is checked against
// the reference and then timed on the same data, caches flushed before every run. On the CPU the
// machine's bandwidth and peak are measured beside each case, for they drift; other devices' limits
// are what their vendors state (DeviceInfo), and a simulator counts instead of keeping time.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/harness/select.h"

namespace weft::trial {

struct BenchOptions {
  Selection selection;
  int threads = 1;  ///< on the CPU: worker threads, each with an equal piece of the work
  uint64_t seed = 1;
  Device* device = nullptr;  ///< null: the CPU
  int runs = 30;             ///< of each case on a device
  /// Launches of a run, each with operands of its own, on a device that keeps time: what an
  /// operation takes among others, as a model's step has them. A time is then that of one.
  int in_a_row = 1;
};

struct BenchOutcome {
  SelectedCase selected;
  std::string mismatch;              ///< not empty: it is wrong, and was not timed
  std::string skipped;               ///< not empty: why the device cannot run it
  std::optional<Plan> plan;          ///< on a device
  std::optional<Counters> counters;  ///< of a simulator, in place of the times
  int64_t runs = 0;
  double median = 0;  ///< seconds a run
  double best = 0;
  double slowest = 0;
  Work work;
  double bandwidth = 0;  ///< bytes per second that the same threads read, or the vendor's
  double peak = 0;       ///< flops per second that they reach, of work.peak, or the vendor's

  bool timed() const { return runs > 0; }
  /// Seconds that one run takes at least on this machine. A run whose writes fit the caches can be
  /// faster: they reach the memory later.
  double limit() const;
  bool memory_bound() const;
};

struct BenchReport {
  std::vector<BenchOutcome> outcomes;
  /// Geometric mean of limit / median over the cases that were timed.
  double mean_share = 0;
  int64_t failed = 0;
  /// On a device that keeps time: seconds of a run that launches nothing, by the same method. They
  /// are in every other time too.
  double empty_run = 0;
};

/// Benches on the CPU with current_isa(), or on options.device, calling `report` after each case.
/// Errors: usage (see select_cases()), device (no memory, or it failed).
Result<BenchReport> bench_operations(const BenchOptions& options,
                                     const std::function<void(const BenchOutcome&)>& report);

}  // namespace weft::trial
