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

class PlacedTrial {
 public:
  /// `plans`: all that will be run. Errors of all functions: device.
  static Result<PlacedTrial> place(std::unique_ptr<Trial> trial, Device& device,
                                   std::span<const Plan> plans, Random& random);

  /// Runs once, from poisoned outputs, and compares some rows. The inputs are not looked over for
  /// damage, as `weft check` does.
  Result<std::optional<Mismatch>> check(const Plan& plan);
  /// Seconds of each run; see Device::time().
  Result<std::vector<double>> time(const Plan& plan, int runs);
  Result<Counters> count(const Plan& plan);

 private:
  explicit PlacedTrial(std::unique_ptr<Trial> trial) : trial_(std::move(trial)) {}

  std::unique_ptr<Trial> trial_;
  std::vector<Expectation> expectations_;
};

}  // namespace weft::trial
