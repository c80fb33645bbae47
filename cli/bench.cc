// weft bench: how near is every operation to what this machine can do?
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "arch/cpu/threads.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/origin.h"
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
                           name_of(outcome.work.peak));
}

/// A bound from counts is never a time.
std::string counted(const Counters& counters, double limit) {
  std::string text = fmt::format("counts say at least {} ({}), {:.2f} times the limit of {}",
                                 duration(counters.bound), counters.bound_by,
                                 counters.bound / limit, duration(limit));
  for (const Counters::Entry& entry : counters.entries) {
    text += fmt::format("\n    {:<40} {:.6g}", entry.name, entry.value);
  }
  return text;
}

/// One line a case as it comes, but each reason to skip cases only once in a row.
class BenchPrinter {
 public:
  explicit BenchPrinter(std::FILE* to) : to_(to) {}
  void report(const trial::BenchOutcome& outcome) {
    const std::string subject =
        fmt::format("{} {}", outcome.selected.operation->name, outcome.selected.name());
    const std::string plan = outcome.plan ? "; " + to_text(*outcome.plan) : "";
    if (!outcome.skipped.empty()) {
      const std::string why =
          fmt::format("{}: skipped: {}", outcome.selected.operation->name, outcome.skipped);
      if (why != skipped_) {
        fmt::print(to_, "{}\n", why);
      }
      skipped_ = why;
    } else if (!outcome.mismatch.empty()) {
      fmt::print(to_, "{}: WRONG, not timed: {}{}\n", subject, outcome.mismatch, plan);
    } else if (outcome.counters) {
      fmt::print(to_, "{}{}; {}\n", subject, plan, counted(*outcome.counters, outcome.limit()));
    } else {
      fmt::print(to_, "{}: median {}, best {}, slowest {} of {}; {}, {:.0f}% of the limit{}\n",
                 subject, duration(outcome.median), duration(outcome.best),
                 duration(outcome.slowest), outcome.runs, rate(outcome),
                 100 * outcome.limit() / outcome.median, plan);
    }
    std::fflush(to_);
  }

 private:
  std::FILE* to_;
  std::string skipped_;  // the line that said why the last one was
};

/// The geometric means of each operation's cases that were timed.
void print_means(const trial::BenchReport& report, std::FILE* to) {
  std::map<std::string_view, std::vector<const trial::BenchOutcome*>> operations;
  for (const trial::BenchOutcome& outcome : report.outcomes) {
    if (outcome.timed()) {
      operations[outcome.selected.operation->name].push_back(&outcome);
    }
  }
  for (const auto& [name, outcomes] : operations) {
    double times = 0;
    double shares = 0;
    for (const trial::BenchOutcome* each : outcomes) {
      times += std::log(each->median);
      shares += std::log(each->limit() / each->median);
    }
    const auto count = static_cast<double>(outcomes.size());
    fmt::print(to, "{}: geometric mean {}, {:.0f}% of the limit over {} cases\n", name,
               duration(std::exp(times / count)), 100 * std::exp(shares / count), outcomes.size());
  }
}

std::string method_of(const trial::BenchOptions& options) {
  if (options.device == nullptr) {
    return fmt::format("{} threads; caches flushed before every run", options.threads);
  }
  if (options.in_a_row > 1) {
    return fmt::format(
        "replays of a graph of {} launches between events, each with operands of its own, caches "
        "flushed before every run; times are of one launch",
        options.in_a_row);
  }
  return options.device->info().keeps_time
             ? "replays of a graph between events, caches flushed before every run"
             : "counted, not timed";
}

std::string to_json(const trial::BenchReport& report, const trial::BenchOptions& options) {
  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  for (const trial::BenchOutcome& outcome : report.outcomes) {
    nlohmann::ordered_json each = {{"operation", outcome.selected.operation->name},
                                   {"case", outcome.selected.name()}};
    if (outcome.plan) {
      each["plan"] = to_text(*outcome.plan);
    }
    if (!outcome.mismatch.empty()) {
      each["wrong"] = outcome.mismatch;
    } else if (!outcome.skipped.empty()) {
      each["skipped"] = outcome.skipped;
    } else {
      each.update({{"bytes", outcome.work.bytes},
                   {"flops", outcome.work.flops},
                   {"bandwidth_bytes_per_s", outcome.bandwidth},
                   {"peak_flops_per_s", outcome.peak},
                   {"peak_of", name_of(outcome.work.peak)},
                   {"limit_s", outcome.limit()}});
    }
    if (outcome.timed()) {
      each.update({{"runs", outcome.runs},
                   {"median_s", outcome.median},
                   {"best_s", outcome.best},
                   {"slowest_s", outcome.slowest},
                   {"share_of_limit", outcome.limit() / outcome.median}});
    }
    if (outcome.counters) {
      each["bound_from_counts_s"] = outcome.counters->bound;
      each["bound_by"] = outcome.counters->bound_by;
      for (const Counters::Entry& entry : outcome.counters->entries) {
        each["counts"][entry.name] = entry.value;
      }
    }
    cases.push_back(std::move(each));
  }
  const Device* device = options.device;
  nlohmann::ordered_json all =
      origin(device == nullptr ? nullptr : &device->info(), method_of(options));
  all["shapes"] = options.selection.shapes.empty() ? "listed" : "given";  // that is, by --shape
  if (device == nullptr) {
    all["threads"] = options.threads;
  } else {
    all["in_a_row"] = options.in_a_row;
    all["empty_run_s"] = report.empty_run;
  }
  all["geomean_share_of_limit"] = report.mean_share;
  all["cases"] = std::move(cases);
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
  declare_cases(*command, flags->bench.selection);
  command->add_option("--threads", flags->bench.threads, "Worker threads")
      ->check(CLI::Range(1, 1024));
  command->add_option("--seed", flags->bench.seed, "Of the random inputs");
  command->add_option("--runs", flags->bench.runs, "Of each case, on a device")
      ->check(CLI::Range(1, 10000));
  declare_in_a_row(*command, flags->bench.in_a_row);
  command->add_option("--json", flags->json, "Also write the figures to this file (-: stdout)");
  declare_device(*command, flags->device);
  add_bench_decode(*command, action);
  add_bench_load(*command, action);
#ifdef WEFT_WITH_SIM
  add_bench_kernel(*command, action);
#endif
  command->callback([flags, command, &action] {
    if (!command->get_subcommands().empty()) {
      return;  // bench decode, load, kernel
    }
    action = [flags]() -> Result<int> {
      WEFT_ASSIGN(const std::unique_ptr<Device> device, operations_device(flags->device));
      flags->bench.device = device.get();
      std::FILE* to = flags->json == "-" ? stderr : stdout;  // nothing between the figures
      fmt::print(to, "{}; {}\n", describe(flags->bench.device), method_of(flags->bench));
      BenchPrinter printer(to);
      WEFT_ASSIGN(const trial::BenchReport report,
                  trial::bench_operations(flags->bench, [&](const trial::BenchOutcome& outcome) {
                    printer.report(outcome);
                  }));
      if (device != nullptr) {
        print_means(report, to);
      }
      const auto timed = std::count_if(report.outcomes.begin(), report.outcomes.end(),
                                       [](const auto& outcome) { return outcome.timed(); });
      if (report.empty_run > 0) {
        fmt::print(to, "a run that launches nothing takes {} by this method\n",
                   duration(report.empty_run));
      }
      if (device == nullptr || device->info().keeps_time) {
        fmt::print(to, "geometric mean {:.0f}% of the limit over {} cases\n",
                   100 * report.mean_share, timed);
      }
      if (!flags->json.empty()) {
        WEFT_TRY(write_text(flags->json, to_json(report, flags->bench)));
      }
      return report.failed == 0 ? 0 : 1;
    };
  });
}

}  // namespace weft::cli
