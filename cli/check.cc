// weft check: is every operation right on this machine?
#include <fmt/format.h>
#include <unistd.h>

#include <map>

#include "cli/commands.h"
#include "cli/common.h"
#include "ops/harness/check.h"

namespace weft::cli {
namespace {

Result<int> list(const trial::Selection& selection) {
  WEFT_ASSIGN(const auto cases, trial::select_cases(selection, trial::Use::check));
  for (const trial::SelectedCase& each : cases) {
    fmt::print("{} {}\n", each.operation->name, each.name());
  }
  return 0;
}

/// Prints failures as they come and a line for each operation when it is done.
class Printer {
 public:
  void report(const trial::CheckOutcome& outcome) {
    using Verdict = trial::CheckOutcome::Verdict;
    if (outcome.selected.operation != operation_) {
      finish();
      operation_ = outcome.selected.operation;
    }
    ++counts_[outcome.verdict];
    if (outcome.verdict == Verdict::failed) {
      fmt::print("FAILED {} {} ({}): {}\n       repeat: {}\n", operation_->name,
                 outcome.selected.name(), outcome.variant, outcome.message, outcome.repeat);
    }
    if (terminal_) {
      fmt::print(stderr, "\r\033[K{} {} ({})", operation_->name, outcome.selected.name(),
                 outcome.variant);
    }
  }
  void finish() {
    using Verdict = trial::CheckOutcome::Verdict;
    if (operation_ == nullptr) {
      return;
    }
    if (terminal_) {
      fmt::print(stderr, "\r\033[K");
    }
    fmt::print("{:<14} {} passed, {} failed, {} skipped\n", operation_->name,
               counts_[Verdict::passed], counts_[Verdict::failed], counts_[Verdict::skipped]);
    std::fflush(stdout);
    counts_.clear();
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const trial::Operation* operation_ = nullptr;
  std::map<trial::CheckOutcome::Verdict, int64_t> counts_;
};

}  // namespace

void add_check(CLI::App& app, Action& action) {
  struct Flags {
    trial::CheckOptions check;
    std::string device;
    bool list = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "check",
      "Check operations against their references in double: every instruction set of this machine, "
      "whole and in pieces, with ordinary numbers and with NaN and infinities");
  command->add_option("operation", flags->check.selection.operations, "Operations (all)");
  command->add_option("--case", flags->check.selection.cases, "Glob over case names");
  command->add_option("--seed", flags->check.seed, "Of the random inputs");
  command->add_flag("--list", flags->list, "Print the cases instead");
  declare_device(*command, flags->device);
  command->callback([flags, &action] {
    action = [flags]() -> Result<int> {
      WEFT_TRY(check_device(flags->device));
      if (flags->list) {
        return list(flags->check.selection);
      }
      Printer printer;
      WEFT_ASSIGN(const trial::CheckSummary summary,
                  trial::check_operations(flags->check, [&](const trial::CheckOutcome& outcome) {
                    printer.report(outcome);
                  }));
      printer.finish();
      fmt::print("{} passed, {} failed, {} skipped\n", summary.passed, summary.failed,
                 summary.skipped);
      return summary.failed == 0 ? 0 : 1;
    };
  });
}

}  // namespace weft::cli
