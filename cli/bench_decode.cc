// weft bench decode: a whole generation, timed and held against the machine's own limits, which are
// measured in the same run because they drift.
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/limits.h"
#include "arch/cpu/threads.h"
#include "base/median.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/engine.h"
#include "ops/sample/op.h"

namespace weft::cli {
namespace {

// Decode and prefill round differently (see PlanOptions): logits of the two differ by about this.
constexpr double kLogitsTolerance = 3e-2;
constexpr int64_t kStretch = 16;                   // decode steps between two looks at the memory
constexpr size_t kLimitBytes = size_t{512} << 20;  // of weights read to measure bandwidth

struct Flags {
  ModelSource source;
  EngineFlags engine;
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 128;
  int64_t repeat = 3;
  std::string json;
};

int64_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

/// The longest stretch of memory that holds weights and nothing else.
std::span<const std::byte> longest_run(const Weights& weights) {
  constexpr ptrdiff_t kGap = 4096;
  std::vector<std::span<const std::byte>> parts;
  for (const Tensor& tensor : weights.tensors()) {
    parts.emplace_back(tensor.data, static_cast<size_t>(tensor.bytes()));
  }
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.data() < b.data(); });
  std::span<const std::byte> best;
  std::span<const std::byte> run;
  for (const auto& part : parts) {
    const bool joined = !run.empty() && part.data() - (run.data() + run.size()) < kGap;
    const std::byte* begin = joined ? run.data() : part.data();
    run = {begin, part.data() + part.size()};
    best = run.size() > best.size() ? run : best;
  }
  return best;
}

double relative_difference(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

Result<int> bench_decode(const Flags& flags) {
  WEFT_ASSIGN(EngineOptions options, flags.engine.options());
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  const int64_t total = flags.prompt_tokens + flags.new_tokens;
  if (total > config.context) {
    return usage_error(fmt::format("{} prompt and {} new tokens do not fit {}'s context of {}",
                                   flags.prompt_tokens, flags.new_tokens, config.name,
                                   config.context));
  }
  options.context = options.context > 0 ? options.context : total;
  const int workers = options.workers > 0 ? options.workers : cpu::usable_cpus();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::string_view what) {
    if (terminal) {
      fmt::print(stderr, "\r\033[K{}", what);
    }
  };

  progress("weights");
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, options, workers));
  WEFT_ASSIGN(const auto engine, Engine::create(config, std::move(weights), options));
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < flags.prompt_tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(uniform_draw(1, static_cast<uint64_t>(i)) *
                                          static_cast<float>(config.vocabulary)));
  }
  const double prefill_flops = engine->prefill_cost(flags.prompt_tokens).flops;
  const auto bytes_at = [&](int64_t position) {
    const Cost step = engine->decode_cost(position);
    return step.weight_bytes + step.kv_bytes;
  };
  // Random weights may draw an end-of-sequence token: here it is a token like any other.
  // Shared memory drifts within seconds: the limits are measured between stretches of decode, and
  // each stretch is held against those right before and after it.
  auto memory = longest_run(engine->weights());
  memory = memory.first(std::min(memory.size(), kLimitBytes));
  std::vector<double> prefill, decode, bandwidth, peak, shares, prefill_shares;
  std::vector<int32_t> tokens;
  bool same_tokens = true;
  for (int64_t round = 0; round <= flags.repeat; ++round) {
    const bool timed = round > 0;  // the first round touches memory and makes programs
    peak.push_back(cpu::bf16_peak(workers).median);
    WEFT_ASSIGN(Generation run, engine->generate(prompt, {}, 1, {}, Eos::ignore));
    peak.push_back(cpu::bf16_peak(workers).median);
    if (timed) {
      prefill.push_back(run.prefill_seconds);
      prefill_shares.push_back(2 * prefill_flops / run.prefill_seconds /
                               (peak.back() + peak[peak.size() - 2]));
    }
    double before = cpu::read_bandwidth(workers, memory).median;
    while (static_cast<int64_t>(run.tokens.size()) < flags.new_tokens) {
      progress(fmt::format("round {} of {}, token {}", round, flags.repeat, run.tokens.size()));
      const int64_t stretch =
          std::min(kStretch, flags.new_tokens - static_cast<int64_t>(run.tokens.size()));
      WEFT_ASSIGN(const Generation more, engine->extend(stretch, {}, Eos::ignore));
      const double after = cpu::read_bandwidth(workers, memory).median;
      if (timed) {
        bandwidth.push_back((before + after) / 2);
        decode.insert(decode.end(), more.decode_seconds.begin(), more.decode_seconds.end());
        const int64_t position = flags.prompt_tokens + static_cast<int64_t>(run.tokens.size());
        shares.push_back(2 * bytes_at(position) / median(more.decode_seconds) / (before + after));
      }
      before = after;
      run.tokens.insert(run.tokens.end(), more.tokens.begin(), more.tokens.end());
    }
    same_tokens = same_tokens && (!timed || run.tokens == tokens);
    tokens = run.tokens;
  }
  const int64_t used = peak_memory();

  // Checked before it is told: every round drew the same tokens, and the last step's logits are
  // those of a prefill of the whole text.
  progress("check");
  const std::vector<float> last(engine->last_logits().begin(), engine->last_logits().end());
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), tokens.begin(), tokens.end() - 1);
  WEFT_ASSIGN(const Score score, engine->score(text));
  const double difference = relative_difference(last, score.last_logits);
  progress("");
  if (!same_tokens || !(difference <= kLogitsTolerance)) {
    fmt::print(stderr,
               "weft: check failed: {}; decode and prefill logits differ by {:.2e} (at most {})\n",
               same_tokens ? "tokens repeat" : "two runs drew different tokens", difference,
               kLogitsTolerance);
    return 1;
  }

  const double step_bytes = bytes_at(flags.prompt_tokens + flags.new_tokens / 2);
  const double read_limit = median(bandwidth);
  const double flop_limit = median(peak);
  const double prefill_seconds = median(prefill);
  const double decode_seconds = median(decode);
  const auto weight_bytes = engine->weights().bytes();
  const auto kv_bytes = engine->kv_bytes(total);

  nlohmann::ordered_json out;
  out["model"] = config.name;
  out["device"] = "cpu";
  out["isa"] = cpu::name_of(cpu::current_isa());
  out["workers"] = workers;
  out["prompt_tokens"] = flags.prompt_tokens;
  out["new_tokens"] = flags.new_tokens;
  out["rounds"] = flags.repeat;
  out["limits"] = {{"read_bytes_per_second", read_limit}, {"bf16_flops_per_second", flop_limit}};
  out["prefill"] = {
      {"seconds", prefill_seconds},
      {"tokens_per_second", static_cast<double>(flags.prompt_tokens) / prefill_seconds},
      {"flops", prefill_flops},
      {"flops_per_second", prefill_flops / prefill_seconds},
      {"share_of_limit", median(prefill_shares)}};
  nlohmann::ordered_json decode_json;
  if (!decode.empty()) {
    decode_json = {{"seconds_per_token", decode_seconds},
                   {"best_seconds", *std::min_element(decode.begin(), decode.end())},
                   {"slowest_seconds", *std::max_element(decode.begin(), decode.end())},
                   {"tokens_per_second", 1 / decode_seconds},
                   {"bytes", step_bytes},
                   {"bytes_per_second", step_bytes / decode_seconds},
                   {"share_of_limit", median(shares)}};
  }
  out["decode"] = decode_json;
  out["memory"] = {{"weights", weight_bytes},
                   {"kv", kv_bytes},
                   {"peak", used},
                   {"beyond_weights_and_kv", used - weight_bytes - kv_bytes}};
  out["check"] = {{"logits_difference", difference}, {"tolerance", kLogitsTolerance}};

  std::string report = fmt::format(
      "{} on cpu: {} workers, {}; {} prompt and {} new tokens, {} rounds after one to warm up\n"
      "  limits   reading {:.1f} GB/s, bf16 products {:.0f} GFLOP/s (medians, measured between the "
      "stretches)\n"
      "  prefill  {:.1f} ms, {:.1f} tokens/s, {:.0f} GFLOP/s of needed work, {:.1f}% of the "
      "limit\n",
      config.name, workers, cpu::name_of(cpu::current_isa()), flags.prompt_tokens, flags.new_tokens,
      flags.repeat, read_limit / 1e9, flop_limit / 1e9, prefill_seconds * 1e3,
      static_cast<double>(flags.prompt_tokens) / prefill_seconds,
      prefill_flops / prefill_seconds / 1e9, 100 * median(prefill_shares));
  if (!decode.empty()) {
    report += fmt::format(
        "  decode   {:.3f} ms a token (best {:.3f}, slowest {:.3f}), {:.2f} tokens/s, {:.1f} GB/s, "
        "{:.1f}% of the limit\n",
        decode_seconds * 1e3, *std::min_element(decode.begin(), decode.end()) * 1e3,
        *std::max_element(decode.begin(), decode.end()) * 1e3, 1 / decode_seconds,
        step_bytes / decode_seconds / 1e9, 100 * median(shares));
  }
  report += fmt::format(
      "  memory   {:.1f} MiB at most: weights {:.1f}, KV {:.1f}, all else {:.1f}\n"
      "  checked  the rounds drew the same tokens; decode and prefill logits differ by {:.1e}\n",
      static_cast<double>(used) / (1 << 20), static_cast<double>(weight_bytes) / (1 << 20),
      static_cast<double>(kv_bytes) / (1 << 20),
      static_cast<double>(used - weight_bytes - kv_bytes) / (1 << 20), difference);
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
  auto flags = std::make_shared<Flags>();
  flags->source.declare(*command, true);
  command->add_option("--prompt-tokens", flags->prompt_tokens, "tokens of (random) prompt")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--new-tokens", flags->new_tokens, "tokens to decode")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--rounds", flags->repeat, "timed rounds")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--json", flags->json, "write figures to this file; - for standard output")
      ->type_name("F");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return bench_decode(*flags); }; });
}

}  // namespace weft::cli
