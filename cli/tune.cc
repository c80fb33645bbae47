// weft tune: which kernel and tiles are fastest for each shape on a device?
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.h"
#include "cli/common.h"
#include "ops/harness/tune.h"

namespace weft::cli {
namespace {

void print(const trial::TuneOutcome& outcome, std::FILE* to) {
  fmt::print(to, "{} {}\n", outcome.selected.operation->name, outcome.selected.name());
  if (!outcome.skipped.empty()) {
    fmt::print(to, "  skipped: {}\n", outcome.skipped);
  }
  for (const trial::TunedCandidate& each : outcome.candidates) {
    if (each.mismatch.empty()) {
      fmt::print(to, "  {}{}  {}\n", outcome.counted ? "counts say at least " : "", to_text(each),
                 to_text(each.plan));
    } else {
      fmt::print(to, "  WRONG        {}: {}\n", to_text(each.plan), each.mismatch);
    }
  }
  std::fflush(to);
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  struct Flags {
    trial::TuneOptions tune;
    std::string operation;
    std::string device;
    std::string out;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "tune", "Measure every candidate of an operation's dispatch on its benchmark's shapes");
  command->add_option("operation", flags->operation, "The operation")->required();
  command->add_option("--case", flags->tune.selection.cases, "Glob over case names");
  command->add_option("--seed", flags->tune.seed, "Of the random inputs");
  declare_in_a_row(*command, flags->tune.in_a_row);
  command
      ->add_option(
          "--out", flags->out,
          "Put the fastest into this table: ops/OPERATION/hopper_table.inc, which the next "
          "build's dispatch uses (-: stdout)")
      ->type_name("FILE");
  declare_device(*command, flags->device);
  command->callback([flags, &action] {
    action = [flags]() -> Result<int> {
      WEFT_ASSIGN(const std::unique_ptr<Device> device, operations_device(flags->device));
      if (device == nullptr) {
        return usage_error("the CPU's kernels have nothing to tune: use --device cuda or hip");
      }
      std::FILE* to = flags->out == "-" ? stderr : stdout;  // nothing between the table's rows
      fmt::print(to, "{}\n", describe(device.get()));
      flags->tune.device = device.get();
      flags->tune.selection.operations = {flags->operation};
      WEFT_ASSIGN(const auto outcomes,
                  trial::tune_operations(flags->tune, [to](const trial::TuneOutcome& outcome) {
                    print(outcome, to);
                  }));
      std::vector<std::string> rows;
      bool wrong = false;
      for (const trial::TuneOutcome& outcome : outcomes) {
        for (const trial::TunedCandidate& each : outcome.candidates) {
          wrong = wrong || !each.mismatch.empty();
        }
        if (!outcome.candidates.empty() && outcome.candidates[0].mismatch.empty()) {
          rows.push_back(trial::table_row(outcome, device->info()));
        }
      }
      if (!flags->out.empty()) {
        std::string table;
        if (flags->out != "-" && std::filesystem::exists(flags->out)) {
          WEFT_ASSIGN(table, read_text(flags->out));
        }
        WEFT_TRY(write_text(flags->out, trial::merge_table(table, rows)));
      }
      return wrong ? 1 : 0;
    };
  });
}

}  // namespace weft::cli
