#include "ops/harness/placed.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weft::trial {

Status check_in_a_row(int in_a_row, const Device* device) {
  if (in_a_row > 1 && (device == nullptr || !device->info().keeps_time)) {
    return usage_error(
        fmt::format("{} launches in a row were asked for, but only a GPU is timed so: leave it out "
                    "or choose --device cuda",
                    in_a_row));
  }
  return {};
}

Result<PlacedTrial> PlacedTrial::place(std::unique_ptr<Trial> trial, Device& device,
                                       std::span<const Plan> plans, Random& random, int in_a_row) {
  PlacedTrial result(std::move(trial), in_a_row);
  WEFT_TRY(result.trial_->place(device, plans, in_a_row));
  result.trial_->prepare(0);
  result.trial_->restore();
  WEFT_TRY(result.trial_->upload());
  result.expectations_ = expect_some_rows(*result.trial_, random);
  return result;
}

Status PlacedTrial::run(const Plan& plan, int launches) {
  for (int i = 0; i < launches; ++i) {
    trial_->select(i);
    WEFT_TRY(trial_->launch(plan));
  }
  return {};
}

Result<std::optional<Mismatch>> PlacedTrial::check(const Plan& plan) {
  for (const auto& tensor : trial_->tensors()) {
    if (!tensor->read_only()) {
      tensor->restore();
      WEFT_TRY(tensor->upload(trial_->device()));
    }
  }
  WEFT_TRY(run(plan, in_a_row_));
  for (int i = 0; i < in_a_row_; i += std::max(1, in_a_row_ - 1)) {
    trial_->select(i);
    WEFT_TRY(trial_->download(false));
    if (auto mismatch = compare(expectations_)) {
      return mismatch;
    }
    if (auto mismatch = trial_->damage()) {
      return mismatch;
    }
  }
  return std::optional<Mismatch>();
}

Result<std::vector<double>> PlacedTrial::time(const Plan& plan, int runs, int launches) {
  WEFT_ASSIGN(std::vector<double> seconds,
              trial_->device().time([&](Stream /*own*/) { return run(plan, launches); }, runs));
  for (double& each : seconds) {
    each /= launches;
  }
  return seconds;
}

Result<Counters> PlacedTrial::count(const Plan& plan) {
  return trial_->device().count([&](Stream /*own*/) { return run(plan, in_a_row_); });
}

Result<std::optional<Mismatch>> check_twice(Trial& trial, const Plan& plan,
                                            std::span<const Expectation> expectations) {
  const auto once = [&](bool in_pieces) -> Status {
    trial.restore();
    WEFT_TRY(trial.upload());
    WEFT_TRY(in_pieces ? trial.launch_pieces(plan) : trial.launch(plan));
    return trial.download(true);
  };
  WEFT_TRY(once(false));
  if (auto mismatch = compare(expectations)) {
    return mismatch;
  }
  if (auto mismatch = trial.damage()) {
    return mismatch;
  }
  std::vector<std::vector<uint8_t>> first;
  for (const auto& tensor : trial.tensors()) {
    first.push_back(tensor->cells());
  }
  WEFT_TRY(once(true));
  for (size_t i = 0; i < first.size(); ++i) {
    if (trial.tensors()[i]->cells() != first[i]) {
      return std::optional(Mismatch{fmt::format(
          "{} has other bits in a second run (in pieces, where that shall make no difference)",
          trial.tensors()[i]->name())});
    }
  }
  return trial.damage();
}

}  // namespace weft::trial
