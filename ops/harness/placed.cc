#include "ops/harness/placed.h"

#include <fmt/format.h>

#include <utility>

namespace weft::trial {

Result<PlacedTrial> PlacedTrial::place(std::unique_ptr<Trial> trial, Device& device,
                                       std::span<const Plan> plans, Random& random) {
  PlacedTrial result(std::move(trial));
  WEFT_TRY(result.trial_->place(device, plans));
  result.trial_->prepare(0);
  result.trial_->restore();
  WEFT_TRY(result.trial_->upload());
  result.expectations_ = expect_some_rows(*result.trial_, random);
  return result;
}

Result<std::optional<Mismatch>> PlacedTrial::check(const Plan& plan) {
  for (const auto& tensor : trial_->tensors()) {
    if (tensor->role() != Tensor::Role::input) {
      tensor->restore();
      WEFT_TRY(tensor->upload(trial_->device()));
    }
  }
  WEFT_TRY(trial_->launch(plan));
  WEFT_TRY(trial_->download(false));
  if (auto mismatch = compare(expectations_)) {
    return mismatch;
  }
  return trial_->damage();
}

Result<std::vector<double>> PlacedTrial::time(const Plan& plan, int runs) {
  return trial_->device().time([&](Stream /*own*/) { return trial_->launch(plan); }, runs);
}

Result<Counters> PlacedTrial::count(const Plan& plan) {
  return trial_->device().count([&](Stream /*own*/) { return trial_->launch(plan); });
}

Result<std::optional<Mismatch>> check_twice(Trial& trial, const Plan& plan,
                                            std::span<const Expectation> expectations) {
  const auto once = [&]() -> Status {
    trial.restore();
    WEFT_TRY(trial.upload());
    WEFT_TRY(trial.launch(plan));
    return trial.download(true);
  };
  WEFT_TRY(once());
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
  WEFT_TRY(once());
  for (size_t i = 0; i < first.size(); ++i) {
    if (trial.tensors()[i]->cells() != first[i]) {
      return std::optional(
          Mismatch{fmt::format("{} has other bits in a second run", trial.tensors()[i]->name())});
    }
  }
  return trial.damage();
}

}  // namespace weft::trial
