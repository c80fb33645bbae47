// weft bench decode: a whole generation, timed and held against the machine's own limits, which are
// measured in the same run because they drift.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/limits.h"
#include "arch/cpu/threads.h"
#include "arch/device.h"
#include "base/median.h"
#include "base/relative_difference.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/origin.h"
#include "engine/engine.h"
#include "engine/hopper/prefill_plan.h"
#include "ops/sample/op.h"

namespace weft::cli {
namespace {

// Decode steps between two looks at the memory; a GPU's, of one launch, is steady.
constexpr int64_t kStretch = 16;
constexpr int64_t kGpuStretch = 64;

struct DecodeFlags {
  ModelSource source;
  EngineFlags engine;
  SamplingOptions sampling;
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 128;
  int batch = 1;
  int64_t repeat = 3;
  bool profile = false;
  std::string json;
};

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// Bytes of this process in memory now.
int64_t resident_memory() {
  int64_t pages = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Result<int> bench_decode(const DecodeFlags& flags) {
  WEFT_ASSIGN(EngineOptions options, flags.engine.options());
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  const int64_t total = flags.prompt_tokens + flags.new_tokens;
  if (total > config.context) {
    return usage_error(fmt::format("{} prompt and {} new tokens do not fit {}'s context of {}",
                                   flags.prompt_tokens, flags.new_tokens, config.name,
                                   config.context));
  }
  options.context = options.context > 0 ? options.context : total;
  options.weights_seed = flags.source.seed;
  options.profile = flags.profile;
  options.sequences = flags.batch;
  const bool on_cpu = options.device == "cpu";
  const int threads = options.workers > 0 && on_cpu ? options.workers : cpu::usable_cpus();
  DeviceInfo device;
  if (!on_cpu) {
    WEFT_ASSIGN(const auto opened, open_device(options.device));
    device = opened->info();
  }
  const double stated_peak =
      device.peak[static_cast<size_t>(Peak::bf16)];  // of a GPU: its vendor's
  const auto bf16_peak = [&] { return on_cpu ? cpu::bf16_peak(threads).median : stated_peak; };
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::string_view what) {
    if (terminal) {
      fmt::print(stderr, "\r\033[K{}", what);
    }
  };

  progress("weights");
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, threads));
  const DType kv = options.kv.value_or(default_kv(config, weights));
  const bool rounded = options.round_activations.value_or(default_round_activations(config));
  const std::string fed = on_cpu ? "" : hopper::describe_prefill(config, weights, {kv, rounded});
  WEFT_ASSIGN(const auto engine, Engine::create(config, std::move(weights), options));
  const int workers = engine->workers();
  const auto batch = static_cast<size_t>(flags.batch);
  std::vector<Engine::Prompt> prompts(batch);
  for (size_t s = 0; s < batch; ++s) {
    for (int64_t i = 0; i < flags.prompt_tokens; ++i) {
      prompts[s].push_back(static_cast<int32_t>(uniform_draw(1 + s, static_cast<uint64_t>(i)) *
                                                static_cast<float>(config.vocabulary)));
    }
  }
  const double prefill_flops = flags.batch * engine->prefill_cost(flags.prompt_tokens).flops;
  const auto bytes_at = [&](int64_t position) {
    const Cost step = engine->decode_cost(position);
    return step.weight_bytes + step.kv_bytes;
  };
  const auto saved_bytes = static_cast<double>(engine->saved_bytes());
  // Random weights may draw an end-of-sequence token: here it is a token like any other.
  // Shared memory drifts within seconds: the limits are measured between stretches of decode, and
  // each stretch is held against those right before and after it.
  std::vector<double> prefill, decode, bandwidth, peak, shares, prefill_shares;
  std::vector<double> against_plain;  // a step's time, of what reading plain weights would take
  std::vector<std::vector<int32_t>> tokens;  // [batch]
  bool same_tokens = true;
  for (int64_t round = 0; round <= flags.repeat; ++round) {
    const bool timed = round > 0;  // the first round touches memory and makes programs
    peak.push_back(bf16_peak());
    WEFT_ASSIGN(const std::vector<Generation> first,
                engine->generate_batch(prompts, flags.sampling, 1, {}, Eos::ignore));
    std::vector<std::vector<int32_t>> run;
    for (const Generation& sequence : first) {
      run.push_back(sequence.tokens);
    }
    const auto drawn = [&] { return static_cast<int64_t>(run.front().size()); };
    peak.push_back(bf16_peak());
    if (timed) {
      const double seconds = first.front().prefill_seconds;
      prefill.push_back(seconds);
      prefill_shares.push_back(2 * prefill_flops / seconds / (peak.back() + peak[peak.size() - 2]));
    }
    WEFT_ASSIGN(double before, engine->read_bandwidth());
    while (drawn() < flags.new_tokens) {
      progress(fmt::format("round {} of {}, token {}", round, flags.repeat, drawn()));
      const int64_t stretch = std::min(on_cpu ? kStretch : kGpuStretch, flags.new_tokens - drawn());
      WEFT_ASSIGN(const std::vector<Generation> more, engine->extend(stretch, {}, Eos::ignore));
      const std::vector<double>& steps = more.front().decode_seconds;
      WEFT_ASSIGN(const double after, engine->read_bandwidth());
      if (timed) {
        decode.insert(decode.end(), steps.begin(), steps.end());
        const double bytes = bytes_at(flags.prompt_tokens + drawn());
        bandwidth.push_back((before + after) / 2);
        shares.push_back(bytes / median(steps) / bandwidth.back());
        against_plain.push_back(median(steps) * bandwidth.back() / (bytes + saved_bytes));
      }
      before = after;
      for (size_t s = 0; s < batch; ++s) {
        run[s].insert(run[s].end(), more[s].tokens.begin(), more[s].tokens.end());
      }
    }
    same_tokens = same_tokens && (!timed || run == tokens);
    tokens = run;
  }
  const int64_t used = peak_memory();
  const int64_t resident = resident_memory();

  // Checked before it is told: every round drew the same tokens, and the last step's logits are
  // those of a prefill of the whole text.
  progress("check");
  std::vector<std::vector<float>> last;
  for (int s = 0; s < flags.batch; ++s) {
    const std::span<const float> logits = engine->last_logits(s);
    last.emplace_back(logits.begin(), logits.end());
  }
  const double tolerance = engine->logits_tolerance();
  double difference = 0;
  for (size_t s = 0; s < batch; ++s) {
    std::vector<int32_t> text = prompts[s];
    text.insert(text.end(), tokens[s].begin(), tokens[s].end() - 1);
    WEFT_ASSIGN(const Score score, engine->score(text));
    const double of_one = relative_difference(last[s], score.last_logits);
    difference = of_one > difference || std::isnan(of_one) ? of_one : difference;
  }
  progress("");
  if (!same_tokens || !(difference <= tolerance)) {
    fmt::print(
        stderr, "weft: check failed: {}; decode and prefill logits differ by {:.2e} (at most {})\n",
        same_tokens ? "tokens repeat" : "two runs drew different tokens", difference, tolerance);
    return 1;
  }

  const double step_bytes = bytes_at(flags.prompt_tokens + flags.new_tokens / 2);
  const double weight_bytes_read = engine->decode_cost(0).weight_bytes;
  const double read_limit = median(bandwidth);
  const double flop_limit = median(peak);
  const double prefill_seconds = median(prefill);
  const double decode_seconds = median(decode);
  const auto weight_bytes = engine->weights().bytes();
  const auto kv_bytes = flags.batch * engine->kv_bytes(total);

  nlohmann::ordered_json out = origin(
      on_cpu ? nullptr : &device,
      fmt::format("medians of {} rounds after one to warm up; the limits are measured before and "
                  "after every {} tokens",
                  flags.repeat, on_cpu ? kStretch : kGpuStretch));
  out["model"] = config.name;
  out["workers"] = workers;
  out["weights"] = name_of_weights(*engine);
  if (const auto time = engine->compressed_time()) {
    out["compressed_over_plain_time"] = *time;
  }
  out["kv"] = name_of(kv);
  out["prompt_activations"] = rounded ? "BF16" : "F32";
  out["sampling"] = {{"temperature", flags.sampling.temperature},
                     {"top_k", flags.sampling.top_k},
                     {"top_p", flags.sampling.top_p},
                     {"min_p", flags.sampling.min_p},
                     {"repetition_penalty", flags.sampling.repetition_penalty}};
  out["batch"] = flags.batch;
  out["prompt_tokens"] = flags.prompt_tokens;
  out["new_tokens"] = flags.new_tokens;
  out["rounds"] = flags.repeat;
  out["limits"] = {{"read_bytes_per_second", read_limit}, {"bf16_flops_per_second", flop_limit}};
  out["prefill"] = {{"seconds", prefill_seconds},
                    {"tokens_per_second",
                     static_cast<double>(flags.batch * flags.prompt_tokens) / prefill_seconds},
                    {"flops", prefill_flops},
                    {"limit_seconds", prefill_flops / flop_limit},
                    {"flops_per_second", prefill_flops / prefill_seconds},
                    {"share_of_limit", median(prefill_shares)}};
  if (!on_cpu) {
    out["prefill"]["fed"] = fed;
  }
  nlohmann::ordered_json decode_json;
  if (!decode.empty()) {
    decode_json = {{"seconds_per_token", decode_seconds},
                   {"mean_seconds", mean(decode)},
                   {"best_seconds", *std::min_element(decode.begin(), decode.end())},
                   {"slowest_seconds", *std::max_element(decode.begin(), decode.end())},
                   {"tokens_per_second", flags.batch / decode_seconds},
                   {"bytes", step_bytes},
                   {"limit_seconds", step_bytes / read_limit},
                   {"weight_bytes", weight_bytes_read},
                   {"bytes_per_second", step_bytes / decode_seconds},
                   {"share_of_limit", median(shares)}};
    if (saved_bytes > 0) {
      decode_json["plain_bytes"] = step_bytes + saved_bytes;
      decode_json["plain_limit_seconds"] = (step_bytes + saved_bytes) / read_limit;
      decode_json["time_over_reading_plain_bytes"] = median(against_plain);
    }
  }
  out["decode"] = decode_json;
  out["memory"] = {{"weights", weight_bytes}, {"kv", kv_bytes}};
  if (on_cpu) {
    out["memory"]["peak"] = used;
    out["memory"]["resident"] = resident;
    out["memory"]["beyond_weights_and_kv"] = used - weight_bytes - kv_bytes;
  }
  out["check"] = {{"logits_difference", difference}, {"tolerance", tolerance}};

  std::string report = fmt::format(
      "{} on {}: {} workers{}; {}{} prompt and {} new tokens, {} rounds after one to warm up\n"
      "  limits   reading {:.1f} GB/s (median, measured between the stretches), bf16 products "
      "{:.0f} "
      "GFLOP/s ({})\n"
      "  prefill  {:.1f} ms, {:.1f} tokens/s, {:.0f} GFLOP/s of needed work, {:.1f}% of the "
      "limit{}\n",
      config.name, options.device, workers,
      on_cpu ? fmt::format(", {}", cpu::name_of(cpu::current_isa())) : "",
      flags.batch > 1 ? fmt::format("{} sequences at once, each ", flags.batch) : "",
      flags.prompt_tokens, flags.new_tokens, flags.repeat, read_limit / 1e9, flop_limit / 1e9,
      on_cpu ? "median, likewise" : "the vendor's figure", prefill_seconds * 1e3,
      static_cast<double>(flags.batch * flags.prompt_tokens) / prefill_seconds,
      prefill_flops / prefill_seconds / 1e9, 100 * median(prefill_shares),
      on_cpu ? "" : "; fed " + fed);
  if (!decode.empty()) {
    report += fmt::format(
        "  decode   {:.3f} ms a {} (median; mean {:.3f}, best {:.3f}, slowest {:.3f}), {:.2f} "
        "tokens/s, {:.1f} GB/s, "
        "{:.1f}% of the limit\n",
        decode_seconds * 1e3, flags.batch > 1 ? "step" : "token", mean(decode) * 1e3,
        *std::min_element(decode.begin(), decode.end()) * 1e3,
        *std::max_element(decode.begin(), decode.end()) * 1e3, flags.batch / decode_seconds,
        step_bytes / decode_seconds / 1e9, 100 * median(shares));
  }
  if (!decode.empty() && saved_bytes > 0) {
    report += fmt::format(
        "           weights compressed without loss; reading them plain would take {:.3f} ms at "
        "the limit, a {} takes {:.1f}% of that\n",
        (step_bytes + saved_bytes) / read_limit * 1e3, flags.batch > 1 ? "step" : "token",
        100 * median(against_plain));
  }
  if (engine->compressed_time()) {
    report += fmt::format("  chosen   weights: {}\n", describe_weights(*engine));
  }
  const auto mebibytes = [](auto bytes) { return static_cast<double>(bytes) / (1 << 20); };
  report += fmt::format(
      "  memory   weights {:.1f} MiB{}, KV {:.1f}{}\n", mebibytes(weight_bytes),
      saved_bytes > 0 || !on_cpu
          ? fmt::format(", a step reads {:.1f}", mebibytes(weight_bytes_read))
          : "",
      mebibytes(kv_bytes),
      !on_cpu ? ""
      // Of packed weights the checkpoint's own pages are given back.
      : saved_bytes > 0 ? fmt::format(", process {:.1f} at most, {:.1f} now", mebibytes(used),
                                      mebibytes(resident))
                        : fmt::format(", all else {:.1f}: {:.1f} at most",
                                      mebibytes(used - weight_bytes - kv_bytes), mebibytes(used)));
  report += fmt::format(
      "  checked  the rounds drew the same tokens; logits of decode and of the text scored as a "
      "whole "
      "differ by {:.1e}\n",
      difference);
  const std::vector<OperationTime> times = engine->operation_times();
  if (!times.empty()) {
    report += fmt::format("  {:<18} {:>12} {:>8} {:>8} {:>8} {:>12}   us\n", "operation",
                          "instructions", "wait", "work", "signal", "slowest work");
    for (const OperationTime& time : times) {
      report += fmt::format("  {:<18} {:>12} {:>8.2f} {:>8.2f} {:>8.2f} {:>12.2f}\n", time.name,
                            time.instructions, time.wait * 1e6, time.work * 1e6, time.signal * 1e6,
                            time.slowest * 1e6);
    }
  }
  if (!flags.json.empty()) {
    WEFT_TRY(write_text(flags.json, out.dump(2) + "\n"));
  }
  if (flags.json != "-") {
    WEFT_TRY(write_text("-", report));
  }
  return 0;
}

}  // namespace

void add_bench_decode(CLI::App& bench, Action& action) {
  CLI::App* command = bench.add_subcommand(
      "decode", "Time prefill and decode of a model against the machine's limits");
  auto flags = std::make_shared<DecodeFlags>();
  flags->source.declare(*command, true);
  command->add_option("--prompt-tokens", flags->prompt_tokens, "tokens of (random) prompt")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--new-tokens", flags->new_tokens, "tokens to decode")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--batch", flags->batch, "sequences decoded at once (cuda)")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  add_sampling_options(*command, flags->sampling);
  command->add_option("--rounds", flags->repeat, "timed rounds")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--profile", flags->profile,
                    "time every operation of a decode step (slows the step a little)");
  command->add_option("--json", flags->json, "write figures to this file; - for standard output")
      ->type_name("F");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return bench_decode(*flags); }; });
}

}  // namespace weft::cli
