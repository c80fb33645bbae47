// A case's data on a device, for as many runs of as many plans as are wanted: what `weft check`,
// `weft bench` and `weft tune` share.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ops/harness/trial.h"

namespace weft::trial {

/// Runs a trial that has its place and is prepared twice, from poisoned outputs: right, nothing
/// damaged, and the second time the same bits. Error (device): it did not finish.
Result<std::optional<Mismatch>> check_twice(Trial& trial, const Plan& plan,
                                            std::span<const Expectation> expectations);

/// Error (usage): several launches of a run are for devices that keep time.
Status check_in_a_row(int in_a_row, const Device* device);

class PlacedTrial {
 public:
  /// `plans`: all that will be run. `in_a_row`: launches of a run, one after the other, each with
  /// operands of its own. Errors of all functions: device.
  static Result<PlacedTrial> place(std::unique_ptr<Trial> trial, Device& device,
                                   std::span<const Plan> plans, Random& random, int in_a_row = 1);

  /// Runs once, from poisoned outputs, and compares some rows of the first launch and of the last.
  /// The inputs are not looked over for damage, as `weft check` does.
  Result<std::optional<Mismatch>> check(const Plan& plan);
  /// Seconds of a launch, for each run; see Device::time(). Of one by itself, or of all in a row.
  Result<std::vector<double>> time_alone(const Plan& plan, int runs) { return time(plan, runs, 1); }
  Result<std::vector<double>> time(const Plan& plan, int runs) {
    return time(plan, runs, in_a_row_);
  }
  Result<Counters> count(const Plan& plan);

 private:
  PlacedTrial(std::unique_ptr<Trial> trial, int in_a_row)
      : trial_(std::move(trial)), in_a_row_(in_a_row) {}
  Status run(const Plan& plan, int launches);
  Result<std::vector<double>> time(const Plan& plan, int runs, int launches);

  std::unique_ptr<Trial> trial_;
  int in_a_row_;
  std::vector<Expectation> expectations_;
};

}  // namespace weft::trial
