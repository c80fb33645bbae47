// weft check: is every operation right on this machine?
#include <fmt/format.h>
#include <unistd.h>

#include <map>

#include "cli/commands.h"
#include "cli/common.h"
#include "ops/harness/check.h"

namespace weft::cli {
namespace {

Result<int> list(const trial::CheckOptions& options) {
  WEFT_ASSIGN(const auto cases,
              trial::select_cases(options.selection, trial::uses_of_check(options)));
  for (const trial::SelectedCase& each : cases) {
    fmt::print("{} {}\n", each.operation->name, each.name());
  }
  return 0;
}

/// Prints failures as they come and a line for each operation when it is done.
class CheckPrinter {
 public:
  void report(const trial::CheckOutcome& outcome) {
    using Verdict = trial::CheckOutcome::Verdict;
    if (outcome.selected.operation != operation_) {
      finish();
      operation_ = outcome.selected.operation;
    }
    ++counts_[outcome.verdict];
    if (outcome.verdict == Verdict::skipped && outcome.message != skipped_) {
      skipped_ = outcome.message;
      fmt::print("skipped {} {} ({}): {}\n", operation_->name, outcome.selected.name(),
                 outcome.variant, skipped_);
    }
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
    fmt::print("{:<18} {} passed, {} failed, {} skipped\n", operation_->name,
               counts_[Verdict::passed], counts_[Verdict::failed], counts_[Verdict::skipped]);
    std::fflush(stdout);
    counts_.clear();
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const trial::Operation* operation_ = nullptr;
  std::map<trial::CheckOutcome::Verdict, int64_t> counts_;
  std::string skipped_;  // why the last one was: each reason is told once in a row
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
      "Check operations against their references in double, with ordinary numbers and with NaN and "
      "infinities: on the CPU every instruction set of this machine, whole and in pieces; on "
      "another device twice, for the same bits");
  command->add_option("operation", flags->check.selection.operations, "Operations (all)");
  declare_cases(*command, flags->check.selection);
  command->add_option("--seed", flags->check.seed, "Of the random inputs");
  command->add_flag("--quick", flags->check.quick,
                    "On a device: without the large cases, as under a memory checker");
  command->add_flag("--all-plans", flags->check.all_plans,
                    "On a device: every kernel and tile size that the dispatch could choose");
  command->add_flag("--list", flags->list, "Print the cases instead");
  declare_device(*command, flags->device);
  command->callback([flags, &action] {
    action = [flags]() -> Result<int> {
      WEFT_ASSIGN(const std::unique_ptr<Device> device, operations_device(flags->device));
      flags->check.device = device.get();
      if (flags->list) {
        return list(flags->check);
      }
      fmt::print("{}\n", device != nullptr ? describe(device.get()) : "cpu");
      CheckPrinter printer;
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
