// weft bench decode: a whole generation, timed and held against the machine's own limits, which are
// measured in the same run because they drift.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/limits.h"
#include "arch/cpu/threads.h"
#include "arch/device.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/relative_difference.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/origin.h"
#include "engine/engine.h"
#include "engine/prefill/plan.h"
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

/// Where decode was looked at: logits of each sequence when it had drawn so many tokens.
struct Place {
  int64_t drawn = 0;
  std::vector<std::vector<float>> logits;
};

/// What was measured, of the rounds after the first.
struct Figures {
  // Seconds: of a round's prompt, of a step, of the last text scored as a whole.
  std::vector<double> prefill, decode;
  double score = 0;
  // Limits: bytes and operations a second.
  std::vector<double> bandwidth, peak;
  // What was reached of them.
  std::vector<double> shares, prefill_shares;
  std::vector<double> against_plain;  ///< a step's time, of what reading plain weights would take
  std::vector<std::vector<int32_t>> tokens;  ///< [batch]: drawn in the last round
  bool same_tokens = true;                   ///< in every round
  std::vector<Place> places;                 ///< of a mixture's last round, between stretches
  /// Of decode's logits and those of the text scored as a whole: at its end, and as they are held
  /// against the tolerance, see check().
  double last_difference = 0, difference = 0;
  int64_t peak_memory = 0, resident_memory = 0;
};

/// A model on a device, its prompts, and the rounds over them.
class DecodeBench {
 public:
  static Result<DecodeBench> make(const DecodeFlags& flags);

  Result<Figures> measure();
  nlohmann::ordered_json json(const Figures& figures) const;
  std::string text(const Figures& figures) const;
  double tolerance() const { return engine_->logits_tolerance(); }

 private:
  explicit DecodeBench(const DecodeFlags& flags) : flags_(flags) {}

  Status run_round(int64_t round, Figures& figures);
  /// Compares decode's logits with those of the texts scored as wholes, at their end. In a mixture
  /// two experts' logits may nearly tie there, and decode draw the other one: if they differ by
  /// more than is allowed, what counts is the median of all places that were looked at.
  Status check(Figures& figures);
  /// Where decode is now.
  Place look(int64_t drawn) const;
  /// At one place; `seconds`: of the last score.
  Result<double> difference_at(const Place& place, const Figures& figures, double& seconds);
  nlohmann::ordered_json decode_json(const Figures& figures) const;
  std::string memory_text(const Figures& figures) const;
  std::string profile_text() const;

  size_t batch() const { return static_cast<size_t>(flags_.batch); }
  double peak() const { return on_cpu_ ? cpu::bf16_peak(threads_).median : stated_peak_; }
  double bytes_at(int64_t position) const {
    const Cost step = engine_->decode_cost(position);
    return step.weight_bytes + step.kv_bytes;
  }
  double step_bytes() const { return bytes_at(flags_.prompt_tokens + flags_.new_tokens / 2); }
  double saved_bytes() const { return static_cast<double>(engine_->saved_bytes()); }
  double weight_bytes_read() const { return engine_->decode_cost(0).weight_bytes; }
  int64_t kv_bytes() const {
    return flags_.batch * engine_->kv_bytes(flags_.prompt_tokens + flags_.new_tokens);
  }
  double prefill_flops() const {
    return flags_.batch * engine_->prefill_cost(flags_.prompt_tokens).flops;
  }
  static void progress(std::string_view what) {
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\r\033[K{}", what);
    }
  }

  DecodeFlags flags_;
  EngineOptions options_;
  ModelConfig config_;
  DeviceInfo device_;
  bool on_cpu_ = true;
  int threads_ = 1;
  double stated_peak_ = 0;  // of a GPU: its vendor's
  DType kv_ = DType::f32;
  bool rounded_ = false;
  std::string fed_;  // how a GPU is fed prompts
  std::unique_ptr<Engine> engine_;
  std::vector<Engine::Prompt> prompts_;
};

Result<DecodeBench> DecodeBench::make(const DecodeFlags& flags) {
  DecodeBench bench(flags);
  EngineOptions& options = bench.options_;
  WEFT_ASSIGN(options, flags.engine.options());
  WEFT_ASSIGN(bench.config_, flags.source.config());
  const ModelConfig& config = bench.config_;
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
  bench.on_cpu_ = options.device == "cpu";
  bench.threads_ = options.workers > 0 && bench.on_cpu_ ? options.workers : cpu::usable_cpus();
  if (!bench.on_cpu_) {
    WEFT_ASSIGN(const auto opened, open_device(options.device));
    bench.device_ = opened->info();
  }
  bench.stated_peak_ = bench.device_.peak[static_cast<size_t>(Peak::bf16)];

  progress("weights");
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, bench.threads_));
  bench.kv_ = options.kv.value_or(default_kv(config, weights));
  bench.rounded_ = options.round_activations.value_or(default_round_activations(config));
  if (!bench.on_cpu_) {
    bench.fed_ = describe_prefill(bench.device_.arch, config, weights, {bench.kv_, bench.rounded_});
  }
  WEFT_ASSIGN(bench.engine_, Engine::create(config, std::move(weights), options));
  for (uint64_t s = 0; s < bench.batch(); ++s) {
    Engine::Prompt& prompt = bench.prompts_.emplace_back();
    for (int64_t i = 0; i < flags.prompt_tokens; ++i) {
      prompt.push_back(static_cast<int32_t>(uniform_draw(1 + s, static_cast<uint64_t>(i)) *
                                            static_cast<float>(config.vocabulary)));
    }
  }
  return bench;
}

// Random weights may draw an end-of-sequence token: here it is a token like any other.
// Shared memory drifts within seconds: the limits are measured between stretches of decode, and
// each stretch is held against those right before and after it.
Status DecodeBench::run_round(int64_t round, Figures& figures) {
  const bool timed = round > 0;  // the first round touches memory and makes programs
  const double peak_before = peak();
  WEFT_ASSIGN(const std::vector<Generation> first,
              engine_->generate_batch(prompts_, flags_.sampling, 1, {}, Eos::ignore));
  std::vector<std::vector<int32_t>> run;
  for (const Generation& sequence : first) {
    run.push_back(sequence.tokens);
  }
  const auto drawn = [&] { return static_cast<int64_t>(run.front().size()); };
  const double peak_after = peak();
  figures.peak.insert(figures.peak.end(), {peak_before, peak_after});
  if (timed) {
    const double seconds = first.front().prefill_seconds;
    figures.prefill.push_back(seconds);
    figures.prefill_shares.push_back(2 * prefill_flops() / seconds / (peak_before + peak_after));
  }
  figures.places.clear();
  WEFT_ASSIGN(double before, engine_->read_bandwidth());
  while (drawn() < flags_.new_tokens) {
    progress(fmt::format("round {} of {}, token {}", round, flags_.repeat, drawn()));
    const int64_t stretch = std::min(on_cpu_ ? kStretch : kGpuStretch, flags_.new_tokens - drawn());
    WEFT_ASSIGN(const std::vector<Generation> more, engine_->extend(stretch, {}, Eos::ignore));
    const std::vector<double>& steps = more.front().decode_seconds;
    WEFT_ASSIGN(const double after, engine_->read_bandwidth());
    if (timed) {
      figures.decode.insert(figures.decode.end(), steps.begin(), steps.end());
      const double bytes = bytes_at(flags_.prompt_tokens + drawn());
      const double bandwidth = (before + after) / 2;
      figures.bandwidth.push_back(bandwidth);
      figures.shares.push_back(bytes / median(steps) / bandwidth);
      figures.against_plain.push_back(median(steps) * bandwidth / (bytes + saved_bytes()));
    }
    before = after;
    for (size_t s = 0; s < batch(); ++s) {
      run[s].insert(run[s].end(), more[s].tokens.begin(), more[s].tokens.end());
    }
    if (config_.experts.count > 0 && drawn() < flags_.new_tokens) {
      figures.places.push_back(look(drawn()));
    }
  }
  figures.same_tokens = figures.same_tokens && (!timed || run == figures.tokens);
  figures.tokens = std::move(run);
  return {};
}

Place DecodeBench::look(int64_t drawn) const {
  Place place{.drawn = drawn, .logits = {}};
  for (int s = 0; s < flags_.batch; ++s) {
    const std::span<const float> logits = engine_->last_logits(s);
    place.logits.emplace_back(logits.begin(), logits.end());
  }
  return place;
}

Result<double> DecodeBench::difference_at(const Place& place, const Figures& figures,
                                          double& seconds) {
  double largest = 0;
  for (size_t s = 0; s < batch(); ++s) {
    std::vector<int32_t> text = prompts_[s];
    const auto drawn = figures.tokens[s].begin();
    text.insert(text.end(), drawn, drawn + place.drawn - 1);
    const auto start = std::chrono::steady_clock::now();
    WEFT_ASSIGN(const Score score, engine_->score(text));
    seconds = seconds_since(start);
    const double of_one = relative_difference(place.logits[s], score.last_logits);
    largest =
        std::max(largest, std::isnan(of_one) ? std::numeric_limits<double>::infinity() : of_one);
  }
  return largest;
}

Status DecodeBench::check(Figures& figures) {
  progress("check");
  const Place last = look(std::ssize(figures.tokens.front()));
  WEFT_ASSIGN(figures.last_difference, difference_at(last, figures, figures.score));
  figures.difference = figures.last_difference;
  if (!figures.places.empty() && !(figures.difference <= tolerance())) {
    std::vector<double> differences = {figures.last_difference};
    double seconds = 0;
    for (const Place& place : figures.places) {
      WEFT_ASSIGN(const double of_place, difference_at(place, figures, seconds));
      differences.push_back(of_place);
    }
    // As many differ by more as by less; of two or of one, the larger.
    std::sort(differences.begin(), differences.end());
    figures.difference = differences[differences.size() / 2];
  }
  progress("");
  return {};
}

Result<Figures> DecodeBench::measure() {
  Figures figures;
  for (int64_t round = 0; round <= flags_.repeat; ++round) {
    WEFT_TRY(run_round(round, figures));
  }
  figures.peak_memory = peak_memory();
  figures.resident_memory = resident_memory();
  WEFT_TRY(check(figures));
  return figures;
}

nlohmann::ordered_json DecodeBench::decode_json(const Figures& figures) const {
  const std::vector<double>& decode = figures.decode;
  if (decode.empty()) {
    return {};
  }
  const double seconds = median(decode);
  nlohmann::ordered_json out = {
      {"seconds_per_token", seconds},
      {"mean_seconds", mean(decode)},
      {"best_seconds", *std::min_element(decode.begin(), decode.end())},
      {"slowest_seconds", *std::max_element(decode.begin(), decode.end())},
      {"tokens_per_second", flags_.batch / seconds},
      {"bytes", step_bytes()},
      {"limit_seconds", step_bytes() / median(figures.bandwidth)},
      {"weight_bytes", weight_bytes_read()},
      {"bytes_per_second", step_bytes() / seconds},
      {"share_of_limit", median(figures.shares)}};
  if (saved_bytes() > 0) {
    out["plain_bytes"] = step_bytes() + saved_bytes();
    out["plain_limit_seconds"] = (step_bytes() + saved_bytes()) / median(figures.bandwidth);
    out["time_over_reading_plain_bytes"] = median(figures.against_plain);
  }
  return out;
}

nlohmann::ordered_json DecodeBench::json(const Figures& figures) const {
  nlohmann::ordered_json out = origin(
      on_cpu_ ? nullptr : &device_,
      fmt::format("medians of {} rounds after one to warm up; the limits are measured before and "
                  "after every {} tokens",
                  flags_.repeat, on_cpu_ ? kStretch : kGpuStretch));
  out["model"] = config_.name;
  out["workers"] = engine_->workers();
  out["weights"] = name_of_weights(*engine_);
  if (const auto time = engine_->compressed_time()) {
    out["compressed_over_plain_time"] = *time;
  }
  out["kv"] = name_of(kv_);
  out["prompt_activations"] = rounded_ ? "BF16" : "F32";
  out["sampling"] = {{"temperature", flags_.sampling.temperature},
                     {"top_k", flags_.sampling.top_k},
                     {"top_p", flags_.sampling.top_p},
                     {"min_p", flags_.sampling.min_p},
                     {"repetition_penalty", flags_.sampling.repetition_penalty}};
  out["batch"] = flags_.batch;
  out["prompt_tokens"] = flags_.prompt_tokens;
  out["new_tokens"] = flags_.new_tokens;
  out["rounds"] = flags_.repeat;
  out["limits"] = {{"read_bytes_per_second", median(figures.bandwidth)},
                   {"bf16_flops_per_second", median(figures.peak)}};
  const double prefill_seconds = median(figures.prefill);
  out["prefill"] = {{"seconds", prefill_seconds},
                    {"tokens_per_second",
                     static_cast<double>(flags_.batch * flags_.prompt_tokens) / prefill_seconds},
                    {"flops", prefill_flops()},
                    {"limit_seconds", prefill_flops() / median(figures.peak)},
                    {"flops_per_second", prefill_flops() / prefill_seconds},
                    {"share_of_limit", median(figures.prefill_shares)}};
  if (!on_cpu_) {
    out["prefill"]["fed"] = fed_;
  }
  out["decode"] = decode_json(figures);
  out["score"] = {{"tokens", flags_.prompt_tokens + flags_.new_tokens - 1},
                  {"seconds", figures.score}};
  const int64_t weight_bytes = engine_->weights().bytes();
  out["memory"] = {{"weights", weight_bytes}, {"kv", kv_bytes()}};
  if (on_cpu_) {
    out["memory"]["peak"] = figures.peak_memory;
    out["memory"]["resident"] = figures.resident_memory;
    out["memory"]["beyond_weights_and_kv"] = figures.peak_memory - weight_bytes - kv_bytes();
  }
  out["check"] = {{"logits_difference", figures.difference}, {"tolerance", tolerance()}};
  if (figures.difference != figures.last_difference) {
    out["check"]["places"] = figures.places.size() + 1;
    out["check"]["last_logits_difference"] = figures.last_difference;
  }
  return out;
}

std::string DecodeBench::memory_text(const Figures& figures) const {
  const auto mebibytes = [](auto bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const int64_t weight_bytes = engine_->weights().bytes();
  std::string text = fmt::format("  memory   weights {:.1f} MiB", mebibytes(weight_bytes));
  if (saved_bytes() > 0 || !on_cpu_) {
    text += fmt::format(", a step reads {:.1f}", mebibytes(weight_bytes_read()));
  }
  text += fmt::format(", KV {:.1f}", mebibytes(kv_bytes()));
  if (on_cpu_ && saved_bytes() > 0) {  // the checkpoint's own pages are given back
    text += fmt::format(", process {:.1f} at most, {:.1f} now", mebibytes(figures.peak_memory),
                        mebibytes(figures.resident_memory));
  } else if (on_cpu_) {
    text += fmt::format(", all else {:.1f}: {:.1f} at most",
                        mebibytes(figures.peak_memory - weight_bytes - kv_bytes()),
                        mebibytes(figures.peak_memory));
  }
  return text + "\n";
}

std::string DecodeBench::profile_text() const {
  const std::vector<OperationTime> times = engine_->operation_times();
  if (times.empty()) {
    return {};
  }
  std::string text = fmt::format("  {:<18} {:>12} {:>8} {:>8} {:>8} {:>12}   us\n", "operation",
                                 "instructions", "wait", "work", "signal", "slowest work");
  for (const OperationTime& time : times) {
    text += fmt::format("  {:<18} {:>12} {:>8.2f} {:>8.2f} {:>8.2f} {:>12.2f}\n", time.name,
                        time.instructions, time.wait * 1e6, time.work * 1e6, time.signal * 1e6,
                        time.slowest * 1e6);
  }
  return text;
}

std::string DecodeBench::text(const Figures& figures) const {
  const double read_limit = median(figures.bandwidth);
  const double prefill_seconds = median(figures.prefill);
  std::string text = fmt::format(
      "{} on {}: {} workers{}; {}{} prompt and {} new tokens, {} rounds after one to warm up\n"
      "  limits   reading {:.1f} GB/s (median, measured between the stretches), bf16 products "
      "{:.0f} GFLOP/s ({})\n"
      "  prefill  {:.1f} ms, {:.1f} tokens/s, {:.0f} GFLOP/s of needed work, {:.1f}% of the "
      "limit{}\n",
      config_.name, options_.device, engine_->workers(),
      on_cpu_ ? fmt::format(", {}", cpu::name_of(cpu::current_isa())) : "",
      flags_.batch > 1 ? fmt::format("{} sequences at once, each ", flags_.batch) : "",
      flags_.prompt_tokens, flags_.new_tokens, flags_.repeat, read_limit / 1e9,
      median(figures.peak) / 1e9, on_cpu_ ? "median, likewise" : "the vendor's figure",
      prefill_seconds * 1e3,
      static_cast<double>(flags_.batch * flags_.prompt_tokens) / prefill_seconds,
      prefill_flops() / prefill_seconds / 1e9, 100 * median(figures.prefill_shares),
      on_cpu_ ? "" : "; fed " + fed_);
  const std::vector<double>& decode = figures.decode;
  const std::string_view step = flags_.batch > 1 ? "step" : "token";
  if (!decode.empty()) {
    text += fmt::format(
        "  decode   {:.3f} ms a {} (median; mean {:.3f}, best {:.3f}, slowest {:.3f}), {:.2f} "
        "tokens/s, {:.1f} GB/s, {:.1f}% of the limit\n",
        median(decode) * 1e3, step, mean(decode) * 1e3,
        *std::min_element(decode.begin(), decode.end()) * 1e3,
        *std::max_element(decode.begin(), decode.end()) * 1e3, flags_.batch / median(decode),
        step_bytes() / median(decode) / 1e9, 100 * median(figures.shares));
  }
  if (!decode.empty() && saved_bytes() > 0) {
    text += fmt::format(
        "           weights compressed without loss; reading them plain would take {:.3f} ms at "
        "the limit, a {} takes {:.1f}% of that\n",
        (step_bytes() + saved_bytes()) / read_limit * 1e3, step,
        100 * median(figures.against_plain));
  }
  if (engine_->compressed_time()) {
    text += fmt::format("  chosen   weights: {}\n", describe_weights(*engine_));
  }
  text += memory_text(figures);
  text += fmt::format(
      "  checked  the rounds drew the same tokens; logits of decode and of the text scored as a "
      "whole, in {:.1f} ms, differ by {:.1e}{}\n",
      figures.score * 1e3, figures.difference,
      figures.difference == figures.last_difference
          ? ""
          : fmt::format(
                " in the median of {} places; at the end, where experts' logits nearly tie, "
                "by {:.1e}",
                figures.places.size() + 1, figures.last_difference));
  return text + profile_text();
}

Result<int> bench_decode(const DecodeFlags& flags) {
  WEFT_ASSIGN(DecodeBench bench, DecodeBench::make(flags));
  WEFT_ASSIGN(const Figures figures, bench.measure());
  // Checked before it is told.
  if (!figures.same_tokens || !(figures.difference <= bench.tolerance())) {
    fmt::print(stderr,
               "weft: check failed: {}; decode and prefill logits differ by {:.2e} (at most {})\n",
               figures.same_tokens ? "tokens repeat" : "two runs drew different tokens",
               figures.difference, bench.tolerance());
    return 1;
  }
  if (!flags.json.empty()) {
    WEFT_TRY(write_text(flags.json, bench.json(figures).dump(2) + "\n"));
  }
  if (flags.json != "-") {
    WEFT_TRY(write_text("-", bench.text(figures)));
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
  command->add_option("--batch", flags->batch, "sequences decoded at once (GPUs)")
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
