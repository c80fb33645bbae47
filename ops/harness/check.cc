#include "ops/harness/check.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <utility>

#include "arch/cpu/dispatch.h"
#include "ops/harness/placed.h"

namespace weft::trial {
namespace {

// In how many pieces the work is done the second time; the bits must be those of one piece.
constexpr int64_t kPieces = 3;

/// Runs a prepared trial on the current instruction set.
std::optional<Mismatch> run_and_compare(Trial& trial, std::span<const Expectation> expectations,
                                        bool finite) {
  trial.prepare(kPieces);
  trial.restore();
  trial.run_all(1);
  if (auto mismatch = compare(expectations)) {
    return mismatch;
  }
  if (auto mismatch = trial.damage()) {
    return mismatch;
  }
  if (!finite) {
    return std::nullopt;
  }
  std::vector<std::vector<uint8_t>> whole;
  for (const auto& tensor : trial.tensors()) {
    whole.push_back(tensor->cells());
  }
  trial.restore();
  trial.run_all(kPieces);
  if (auto mismatch = trial.damage()) {
    return mismatch;
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    if (trial.tensors()[i]->cells() != whole[i]) {
      return Mismatch{fmt::format("{} has other bits when the work is done in {} pieces",
                                  trial.tensors()[i]->name(), kPieces)};
    }
  }
  return std::nullopt;
}

class Checker {
 public:
  Checker(const CheckOptions& options, const std::function<void(const CheckOutcome&)>& report)
      : options_(options), report_(report) {}

  /// A case on every instruction set.
  void on_cpu(const SelectedCase& selected, bool finite) {
    Random random = random_for(selected, options_.seed);
    const std::unique_ptr<Trial> trial = make(selected, finite, random);
    const std::vector<Expectation> expectations = expect_all_rows(*trial);
    for (int i = 0; i < cpu::kIsas; ++i) {
      const auto isa = static_cast<cpu::Isa>(i);
      CheckOutcome outcome = begin(selected, std::string(cpu::name_of(isa)), finite);
      if (isa > cpu::detected_isa()) {
        skip(outcome, "this processor has not got it");
        continue;
      }
      cpu::force_isa(isa);
      const auto mismatch = run_and_compare(*trial, expectations, finite);
      trial->restore();
      cpu::force_isa(std::nullopt);
      finish(outcome, mismatch);
    }
  }

  /// A case on options.device.
  Status on_device(const SelectedCase& selected, bool finite) {
    Device& device = *options_.device;
    Random random = random_for(selected, options_.seed);
    const std::unique_ptr<Trial> trial = make(selected, finite, random);
    std::vector<Plan> plans{trial->plan(device.info())};
    if (plans[0].kernel.empty()) {
      CheckOutcome outcome = begin(selected, device.info().id, finite);
      skip(outcome, plans[0].why);
      return {};
    }
    if (options_.all_plans) {
      for (const Plan& each : trial->candidates(device.info())) {
        if (each != plans[0]) {
          plans.push_back(each);
        }
      }
    }
    WEFT_TRY(trial->place(device, plans));
    trial->prepare(0);
    const std::vector<Expectation> expectations = expect_all_rows(*trial);
    for (const Plan& plan : plans) {
      CheckOutcome outcome = begin(selected, to_text(plan), finite);
      const auto mismatch = check_twice(*trial, plan, expectations);
      finish(outcome, mismatch.ok() ? *mismatch : Mismatch{mismatch.error().message});
      if (!mismatch.ok()) {
        WEFT_TRY(device.synchronize());  // nothing else can be expected of it if that fails too
      }
    }
    return {};
  }

  const CheckSummary& summary() const { return summary_; }

 private:
  using Verdict = CheckOutcome::Verdict;

  static std::unique_ptr<Trial> make(const SelectedCase& selected, bool finite, Random& random) {
    std::unique_ptr<Trial> trial = selected.info.make(random);
    if (!finite) {
      spoil(*trial, random);
    }
    return trial;
  }

  static CheckOutcome begin(const SelectedCase& selected, std::string variant, bool finite) {
    CheckOutcome outcome;
    outcome.selected = selected;
    outcome.variant = std::move(variant) + (finite ? "" : ", not finite");
    return outcome;
  }

  void skip(CheckOutcome& outcome, std::string_view why) {
    outcome.verdict = Verdict::skipped;
    outcome.message = why;
    ++summary_.skipped;
    report_(outcome);
  }

  void finish(CheckOutcome& outcome, const std::optional<Mismatch>& mismatch) {
    outcome.verdict = mismatch ? Verdict::failed : Verdict::passed;
    ++(mismatch ? summary_.failed : summary_.passed);
    if (mismatch) {
      outcome.message = mismatch->message;
      outcome.repeat = fmt::format(
          "weft check {} {} '{}' --seed {} --device {}{}", outcome.selected.operation->name,
          outcome.selected.listed ? "--case" : "--shape", outcome.selected.name(), options_.seed,
          options_.device != nullptr ? options_.device->info().id : "cpu",
          options_.all_plans ? " --all-plans" : "");
    }
    report_(outcome);
  }

  const CheckOptions& options_;
  const std::function<void(const CheckOutcome&)>& report_;
  CheckSummary summary_;
};

}  // namespace

std::set<Use> uses_of_check(const CheckOptions& options) {
  return options.device != nullptr && !options.quick ? std::set{Use::check, Use::check_large}
                                                     : std::set{Use::check};
}

Result<CheckSummary> check_operations(const CheckOptions& options,
                                      const std::function<void(const CheckOutcome&)>& report) {
  WEFT_ASSIGN(const auto selected, select_cases(options.selection, uses_of_check(options)));
  Checker checker(options, report);
  for (const SelectedCase& each : selected) {
    for (const bool finite : {true, false}) {
      if (options.device != nullptr) {
        WEFT_TRY(checker.on_device(each, finite));
      } else {
        checker.on_cpu(each, finite);
      }
    }
  }
  return checker.summary();
}

}  // namespace weft::trial
