#include "ops/harness/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/median.h"
#include "ops/harness/placed.h"

namespace weft::trial {
namespace {

constexpr int kFewRuns = 10;   // of every candidate
constexpr int kManyRuns = 30;  // of those that were fastest then
constexpr size_t kFinalists = 4;

bool faster(const TunedCandidate& a, const TunedCandidate& b) {
  const auto key = [](const TunedCandidate& each) {
    return std::pair(!each.mismatch.empty(),
                     each.in_a_row > 0 ? std::sqrt(each.median * each.in_a_row) : each.median);
  };
  return key(a) < key(b);
}

Status time_candidate(PlacedTrial& placed, const TuneOptions& options, int runs,
                      TunedCandidate& candidate) {
  WEFT_ASSIGN(std::vector<double> alone, placed.time_alone(candidate.plan, runs));
  candidate.median = median(std::move(alone));
  if (options.in_a_row > 1) {
    WEFT_ASSIGN(std::vector<double> in_a_row, placed.time(candidate.plan, runs));
    candidate.in_a_row = median(std::move(in_a_row));
  }
  return {};
}

Status tune(const TuneOptions& options, TuneOutcome& outcome) {
  const SelectedCase& selected = outcome.selected;
  const DeviceInfo& info = options.device->info();
  Random random = random_for(selected, options.seed);
  std::unique_ptr<Trial> trial = selected.info.make(random);
  outcome.key = trial->key();
  outcome.counted = !info.keeps_time;
  const Plan chosen = trial->plan(info);
  if (chosen.kernel.empty()) {
    outcome.skipped = chosen.why;
    return {};
  }
  std::vector<Plan> plans = trial->candidates(info);
  if (std::find(plans.begin(), plans.end(), chosen) == plans.end()) {
    plans.push_back(chosen);
  }
  WEFT_ASSIGN(PlacedTrial placed, PlacedTrial::place(std::move(trial), *options.device, plans,
                                                     random, options.in_a_row));
  auto& candidates = outcome.candidates;
  for (const Plan& plan : plans) {
    TunedCandidate candidate{.plan = plan, .mismatch = {}};
    WEFT_ASSIGN(const auto mismatch, placed.check(plan));
    if (mismatch) {
      candidate.mismatch = mismatch->message;
    } else if (outcome.counted) {
      WEFT_ASSIGN(const Counters counters, placed.count(plan));
      candidate.median = counters.bound;
    } else {
      WEFT_TRY(time_candidate(placed, options, kFewRuns, candidate));
    }
    candidates.push_back(std::move(candidate));
  }
  std::sort(candidates.begin(), candidates.end(), faster);
  for (size_t i = 0; i < std::min(kFinalists, candidates.size()) && !outcome.counted; ++i) {
    if (candidates[i].mismatch.empty()) {
      WEFT_TRY(time_candidate(placed, options, kManyRuns, candidates[i]));
    }
  }
  std::sort(candidates.begin(), candidates.end(), faster);
  return {};
}

/// What comes before the plan in a row: the key and the device.
std::string_view subject(std::string_view row) { return row.substr(0, row.find("{.kernel")); }

}  // namespace

Result<std::vector<TuneOutcome>> tune_operations(
    const TuneOptions& options, const std::function<void(const TuneOutcome&)>& report) {
  WEFT_TRY(check_in_a_row(options.in_a_row, options.device));
  WEFT_ASSIGN(const auto selected, select_cases(options.selection, {Use::bench}));
  std::vector<TuneOutcome> outcomes;
  for (const SelectedCase& each : selected) {
    TuneOutcome outcome{.selected = each, .key = {}, .skipped = {}, .candidates = {}};
    WEFT_TRY(tune(options, outcome));
    report(outcome);
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

std::string to_text(const TunedCandidate& candidate) {
  return candidate.in_a_row > 0 ? fmt::format("{:.1f} us, {:.1f} in a row", candidate.median * 1e6,
                                              candidate.in_a_row * 1e6)
                                : fmt::format("{:.1f} us", candidate.median * 1e6);
}

std::string table_row(const TuneOutcome& outcome, const DeviceInfo& device) {
  const TunedCandidate& best = outcome.candidates.at(0);
  const Plan& plan = best.plan;
  const PlanKey& key = outcome.key;
  std::string row = fmt::format("{{{{{}, {}, {}, \"{}\"}}, \"{}\", {}, {{.kernel = \"{}\"", key.m,
                                key.n, key.k, key.format, device.target, device.units, plan.kernel);
  const auto add = [&](std::string_view name, int value, int usual) {
    if (value != usual) {
      row += fmt::format(", .{} = {}", name, value);
    }
  };
  add("tile_m", plan.tile_m, 0);
  add("tile_n", plan.tile_n, 0);
  add("tile_k", plan.tile_k, 0);
  add("stages", plan.stages, 0);
  add("splits", plan.splits, 1);
  add("cluster", plan.cluster, 1);
  add("threads", plan.threads, 0);
  row += plan.swapped ? ", .swapped = true" : "";
  row +=
      fmt::format("}}}},  // {}{}", outcome.counted ? "counts say at least " : "", to_text(best));
  if (outcome.candidates.size() > 1 && outcome.candidates[1].mismatch.empty()) {
    row += "; next " + to_text(outcome.candidates[1]);
  }
  return row;
}

std::string merge_table(std::string_view table, const std::vector<std::string>& rows) {
  std::string result;
  while (!table.empty()) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(std::min(table.size(), line.size() + 1));
    const bool replaced = std::any_of(rows.begin(), rows.end(), [&](const std::string& row) {
      return subject(row) == subject(line);
    });
    if (!replaced) {
      result += fmt::format("{}\n", line);
    }
  }
  for (const std::string& row : rows) {
    result += row + "\n";
  }
  return result;
}

}  // namespace weft::trial
