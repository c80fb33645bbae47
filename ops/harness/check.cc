#include "ops/harness/check.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "arch/cpu/dispatch.h"

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
  std::vector<std::vector<uint16_t>> whole;
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

}  // namespace

Result<CheckSummary> check_operations(const CheckOptions& options,
                                      const std::function<void(const CheckOutcome&)>& report) {
  using Verdict = CheckOutcome::Verdict;
  WEFT_ASSIGN(const auto selected, select_cases(options.selection, Use::check));
  CheckSummary summary;
  for (const SelectedCase& each : selected) {
    for (const bool finite : {true, false}) {
      Random random = random_for(each, options.seed);
      const std::unique_ptr<Trial> trial = each.operation->make(each.index, random);
      if (!finite) {
        spoil(*trial, random);
      }
      const std::vector<Expectation> expectations = trial->expect({0, trial->rows()});
      for (int i = 0; i < cpu::kIsas; ++i) {
        const auto isa = static_cast<cpu::Isa>(i);
        CheckOutcome outcome;
        outcome.selected = each;
        outcome.variant = fmt::format("{}{}", cpu::name_of(isa), finite ? "" : ", not finite");
        if (isa > cpu::detected_isa()) {
          outcome.verdict = Verdict::skipped;
          outcome.message = "this processor has not got it";
          ++summary.skipped;
        } else {
          cpu::force_isa(isa);
          const auto mismatch = run_and_compare(*trial, expectations, finite);
          trial->restore();
          cpu::force_isa(std::nullopt);
          outcome.verdict = mismatch ? Verdict::failed : Verdict::passed;
          ++(mismatch ? summary.failed : summary.passed);
          if (mismatch) {
            outcome.message = mismatch->message;
            outcome.repeat = fmt::format("weft check {} --case '{}' --seed {}",
                                         each.operation->name, each.name(), options.seed);
          }
        }
        report(outcome);
      }
    }
  }
  return summary;
}

}  // namespace weft::trial
