// weft bench: how near is every operation to what this machine can do?
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/threads.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "ops/harness/bench.h"

namespace weft::cli {
namespace {

std::string duration(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
                        : fmt::format("{:.2f} ms", seconds * 1e3);
}

std::string rate(const trial::BenchOutcome& outcome) {
  return outcome.memory_bound()
             ? fmt::format("{:.1f} of {:.1f} GB/s", outcome.work.bytes / outcome.median / 1e9,
                           outcome.bandwidth / 1e9)
             : fmt::format("{:.3f} of {:.3f} TFLOP/s {}",
                           outcome.work.flops / outcome.median / 1e12, outcome.peak / 1e12,
                           outcome.work.peak == trial::Peak::bf16 ? "bf16" : "f32");
}

void print(const trial::BenchOutcome& outcome) {
  if (!outcome.mismatch.empty()) {
    fmt::print("{} {}: WRONG, not timed: {}\n", outcome.selected.operation->name,
               outcome.selected.name(), outcome.mismatch);
    return;
  }
  fmt::print("{} {}: median {}, best {}, slowest {} of {}; {}, {:.0f}% of the limit\n",
             outcome.selected.operation->name, outcome.selected.name(), duration(outcome.median),
             duration(outcome.best), duration(outcome.slowest), outcome.runs, rate(outcome),
             100 * outcome.limit() / outcome.median);
  std::fflush(stdout);
}

std::string to_json(const trial::BenchReport& report, int threads) {
  nlohmann::json cases = nlohmann::json::array();
  for (const trial::BenchOutcome& outcome : report.outcomes) {
    nlohmann::json each = {{"operation", outcome.selected.operation->name},
                           {"case", outcome.selected.name()}};
    if (!outcome.mismatch.empty()) {
      each["wrong"] = outcome.mismatch;
    } else {
      each.update({{"runs", outcome.runs},
                   {"median_s", outcome.median},
                   {"best_s", outcome.best},
                   {"slowest_s", outcome.slowest},
                   {"bytes", outcome.work.bytes},
                   {"flops", outcome.work.flops},
                   {"bandwidth_bytes_per_s", outcome.bandwidth},
                   {"peak_flops_per_s", outcome.peak},
                   {"peak_of", outcome.work.peak == trial::Peak::bf16 ? "bf16" : "f32"},
                   {"limit_s", outcome.limit()},
                   {"share_of_limit", outcome.limit() / outcome.median}});
    }
    cases.push_back(std::move(each));
  }
  const nlohmann::json all = {{"device", "cpu"},
                              {"instruction_set", cpu::name_of(cpu::current_isa())},
                              {"threads", threads},
                              {"caches", "flushed before every run"},
                              {"geomean_share_of_limit", report.mean_share},
                              {"cases", std::move(cases)}};
  return all.dump(2) + "\n";
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  struct Flags {
    trial::BenchOptions bench;
    std::string device;
    std::string json;
  };
  auto flags = std::make_shared<Flags>();
  flags->bench.threads = cpu::usable_cpus();
  CLI::App* command = app.add_subcommand(
      "bench", "Time operations, checked and with cold caches, against the machine's own limits");
  command->add_option("operation", flags->bench.selection.operations, "Operations (all)");
  command->add_option("--case", flags->bench.selection.cases, "Glob over case names");
  command->add_option("--threads", flags->bench.threads, "Worker threads")
      ->check(CLI::Range(1, 1024));
  command->add_option("--seed", flags->bench.seed, "Of the random inputs");
  command->add_option("--json", flags->json, "Also write the figures to this file (-: stdout)");
  declare_device(*command, flags->device);
  add_bench_decode(*command, action);
  command->callback([flags, command, &action] {
    if (!command->get_subcommands().empty()) {
      return;  // bench decode
    }
    action = [flags]() -> Result<int> {
      WEFT_TRY(check_device(flags->device));
      fmt::print("cpu, {}, {} threads; caches flushed before every run\n",
                 cpu::name_of(cpu::current_isa()), flags->bench.threads);
      WEFT_ASSIGN(const trial::BenchReport report, trial::bench_operations(flags->bench, print));
      fmt::print("geometric mean {:.0f}% of the limit over {} cases\n", 100 * report.mean_share,
                 static_cast<int64_t>(report.outcomes.size()) - report.failed);
      if (!flags->json.empty()) {
        WEFT_TRY(write_text(flags->json, to_json(report, flags->bench.threads)));
      }
      return report.failed == 0 ? 0 : 1;
    };
  });
}

}  // namespace weft::cli
