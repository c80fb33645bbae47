#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "arch/cpu/threads.h"
#include "base/built.h"
#include "base/clock.h"
#include "engine/cdna/runner.h"
#include "engine/cpu_runner.h"
#include "engine/hopper/runner.h"
#include "engine/resident/code.h"
#include "ops/linear/hopper_layout.h"
#include "program/planner.h"

namespace weft {
namespace {}  // namespace

bool default_round_activations(const ModelConfig& config) {
  constexpr int64_t kLargeHidden = 1024;
  return config.hidden >= kLargeHidden;
}

DType default_kv(const ModelConfig& config, const Weights& weights) {
  const DType dtype = weights.get(Role::query, 0).dtype;
  const bool small = dtype == DType::bf16 || is_fp8(dtype);
  return small && default_round_activations(config) ? DType::bf16 : DType::f32;
}

std::string_view name_of(Stop stop) {
  switch (stop) {
    case Stop::eos:
      return "eos";
    case Stop::length:
      return "length";
    case Stop::context:
      return "context";
    case Stop::caller:
      return "stop";
  }
  return "?";
}

struct Engine::State {
  ModelConfig config;
  Weights weights;
  bool rounds = false;  // to bf16, somewhere between the weights
  int64_t chunk = 0;
  std::unique_ptr<Runner> runner;
  std::vector<bool> ended;  ///< [sequences]: of the last generation

  /// `name`: "the prompt".
  Status check(std::span<const int32_t> ids, std::string_view name) const;
  /// The program of a step, for what it costs.
  Program program(int64_t rows, Logits logits) const {
    PlanOptions options;
    options.rows = rows;
    options.sequences = rows == 1 ? runner->sequences() : 1;
    options.capacity = runner->capacity();
    options.kv = runner->kv();
    options.logits = logits;
    options.sample = logits == Logits::last;
    return plan(config, weights, options);
  }
};

Status Engine::State::check(std::span<const int32_t> ids, std::string_view name) const {
  if (ids.empty()) {
    return input_error(fmt::format("{} has no tokens: give at least one", name));
  }
  const int64_t capacity = runner->capacity();
  if (static_cast<int64_t>(ids.size()) > capacity) {
    return input_error(
        fmt::format("{} has {} tokens but the context holds {}: shorten the prompt{}", name,
                    ids.size(), capacity, capacity < config.context ? " or raise --context" : ""));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocabulary) {
      return input_error(fmt::format("token {} of {} is {}: the model's ids are 0 to {}", i, name,
                                     ids[i], config.vocabulary - 1));
    }
  }
  return {};
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(ModelConfig config, Weights weights,
                                               const EngineOptions& options) {
  if (options.workers < 0 || options.workers > 4096) {
    return usage_error(fmt::format("{} workers cannot be had: use 1 to 4096", options.workers));
  }
  if (options.context < 0 || options.context > config.context) {
    return usage_error(fmt::format("a context of {} positions cannot be had: {} was made for {}",
                                   options.context, config.name, config.context));
  }
  const bool cuda = options.device.starts_with("cuda");
  const bool cdna = options.device.starts_with("hip") || options.device.starts_with("sim:");
  const bool several = cuda || cdna;
  const int most_sequences = cdna ? cdna::kMostAtOnce : cuda ? resident::kMostSequences : 1;
  if (options.sequences < 1 || options.sequences > most_sequences) {
    return usage_error(fmt::format(
        "device {} decodes {} at a time, not {}: run them one after "
        "another",
        options.device,
        several ? fmt::format("1 to {} sequences", most_sequences) : std::string("one sequence"),
        options.sequences));
  }
  auto state = std::make_unique<State>();
  state->config = std::move(config);
  state->weights = std::move(weights);
  state->chunk = std::max<int64_t>(2, options.chunk);
  const ModelConfig& kept = state->config;
  const int64_t capacity = options.context > 0 ? options.context : kept.context;
  const DType kv = options.kv.value_or(default_kv(kept, state->weights));
  const bool round_activations =
      options.round_activations.value_or(default_round_activations(kept));
  const DType dtype = state->weights.get(Role::query, 0).dtype;
  if (options.quantise_activations && kept.quantization.activations.scaling == Scaling::none) {
    return usage_error(
        fmt::format("activations cannot be quantised to fp8: {} has no weights in eight bits that "
                    "come with a rule for them",
                    kept.name));
  }
  state->rounds = kv == DType::bf16 || options.quantise_activations ||
                  ((dtype == DType::bf16 || is_fp8(dtype)) && round_activations) ||
                  (cuda && options.sequences > 4);  // their rows, where they meet weights
  if ((cuda || cdna) && options.quantise_activations) {
    return usage_error("activations are quantised to fp8 on the cpu alone: use --device cpu");
  }
  if (cuda) {
    if constexpr (built::kCuda) {
      WEFT_ASSIGN(state->runner,
                  hopper::create_runner(kept, state->weights,
                                        {.device = options.device,
                                         .workers = options.workers,
                                         .capacity = capacity,
                                         .sequences = options.sequences,
                                         .kv = kv,
                                         .round_activations = round_activations,
                                         .compress_weights = options.compress_weights,
                                         .hold_once = options.hold_once,
                                         .weights_seed = options.weights_seed,
                                         .profile = options.profile}));
    } else {
      return device_error(
          fmt::format("device {} cannot be had: this build has no CUDA kernels", options.device));
    }
  } else if (cdna) {
    // A simulator takes turns at all workgroups: of few it comes to a token soonest.
    constexpr int kSimulated = 2;
    const bool few = options.workers == 0 && options.device.starts_with("sim:");
    WEFT_ASSIGN(state->runner, cdna::create_runner(kept, state->weights,
                                                   {.device = options.device,
                                                    .workers = few ? kSimulated : options.workers,
                                                    .capacity = capacity,
                                                    .sequences = options.sequences,
                                                    .kv = kv,
                                                    .round_activations = round_activations,
                                                    .compress_weights = options.compress_weights,
                                                    .hold_once = options.hold_once}));
  } else {
    WEFT_ASSIGN(
        state->runner,
        CpuRunner::create(kept, state->weights,
                          {.workers = options.workers > 0 ? options.workers : cpu::usable_cpus(),
                           .capacity = capacity,
                           .kv = kv,
                           .round_activations = round_activations,
                           .quantise_activations = options.quantise_activations,
                           .chunk = state->chunk,
                           .compress_weights = options.compress_weights,
                           .profile = options.profile,
                           .interrupted = options.interrupted}));
  }
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

double Engine::logits_tolerance() const {
  constexpr double kSums = 3e-4;
  constexpr double kRoundings = 3e-2;
  constexpr double kDraws = 0.5;
  if (state_->config.experts.count > 0) {
    return state_->rounds ? kDraws : kRoundings;
  }
  return state_->rounds ? kRoundings : kSums;
}

const ModelConfig& Engine::config() const { return state_->config; }
const Weights& Engine::weights() const { return state_->weights; }
int Engine::workers() const { return state_->runner->workers(); }
int Engine::sequences() const { return state_->runner->sequences(); }
int64_t Engine::context() const { return state_->runner->capacity(); }
DType Engine::kv() const { return state_->runner->kv(); }
int64_t Engine::chunk() const { return state_->chunk; }
std::span<const float> Engine::last_logits(int sequence) const {
  return state_->runner->logits(sequence);
}
Result<double> Engine::read_bandwidth() { return state_->runner->read_bandwidth(); }
std::vector<OperationTime> Engine::operation_times() const {
  return state_->runner->operation_times();
}

Cost Engine::prefill_cost(int64_t tokens) const {
  const State& s = *state_;
  Cost sum;
  for (int64_t begin = 0; begin < tokens; begin += s.chunk) {
    const int64_t rows = std::min(s.chunk, tokens - begin);
    const Logits logits = begin + rows < tokens ? Logits::none : Logits::last;
    sum += cost_of(s.program(s.chunk, logits), s.weights, rows, begin);
  }
  return sum;
}

Cost Engine::decode_cost(int64_t position) const {
  const State& s = *state_;
  Cost cost = cost_of(s.program(1, Logits::last), s.weights, s.runner->sequences(), position);
  cost.weight_bytes -= static_cast<double>(s.runner->saved_bytes());
  return cost;
}

int64_t Engine::saved_bytes() const { return state_->runner->saved_bytes(); }
std::optional<double> Engine::compressed_time() const { return state_->runner->compressed_time(); }

int64_t Engine::kv_bytes(int64_t positions) const {
  const ModelConfig& config = state_->config;
  return config.layers * config.cached_size() * positions *
         static_cast<int64_t>(size_of(state_->runner->kv()));
}

namespace {

/// Takes a sequence's tokens as they are drawn: times each from the one before, and says when to
/// end.
class Taker {
 public:
  Taker(const ModelConfig& config, Eos eos) : config_(config), eos_(eos) {}

  /// True: go on. The first token's time is prefill's when `prefill` is set.
  bool take(int32_t token, bool prefill, const std::function<bool(int32_t)>& on_token) {
    const double seconds = seconds_since(start_);
    start_ = std::chrono::steady_clock::now();
    if (prefill) {
      result_.prefill_seconds = seconds;
    } else {
      result_.decode_seconds.push_back(seconds);
    }
    if (eos_ == Eos::ends &&
        std::find(config_.eos.begin(), config_.eos.end(), token) != config_.eos.end()) {
      end(Stop::eos);
      return false;
    }
    result_.tokens.push_back(token);
    if (!on_token(token)) {
      end(Stop::caller);
      return false;
    }
    return true;
  }
  void end(Stop why) { result_.stop = why; }
  Generation release() { return std::move(result_); }

 private:
  const ModelConfig& config_;
  const Eos eos_;
  Generation result_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

/// A Taker for each sequence; marks in `ended` the sequences that end.
class Engine::Takers {
 public:
  Takers(const ModelConfig& config, Eos eos, const OnToken& on_token, std::vector<bool>& ended)
      : takers_(ended.size(), Taker(config, eos)), on_token_(on_token), ended_(ended) {}

  bool take(int sequence, int32_t token, bool prefill) {
    const auto i = static_cast<size_t>(sequence);
    const bool more = takers_[i].take(
        token, prefill, [&](int32_t t) { return !on_token_ || on_token_(sequence, t); });
    ended_[i] = !more;
    return more;
  }
  void end(int sequence, Stop why) {
    const auto i = static_cast<size_t>(sequence);
    takers_[i].end(why);
    ended_[i] = true;
  }
  std::vector<Generation> release() {
    std::vector<Generation> results;
    for (Taker& taker : takers_) {
      results.push_back(taker.release());
    }
    return results;
  }

 private:
  std::vector<Taker> takers_;
  const OnToken& on_token_;
  std::vector<bool>& ended_;
};

Status Engine::decode(int64_t max_tokens, Eos eos, Takers& takers) {
  Runner& runner = *state_->runner;
  const Runner::Tokens ends =
      eos == Eos::ends ? Runner::Tokens(state_->config.eos) : Runner::Tokens{};
  const std::vector<bool>& ended = state_->ended;
  for (int64_t left = max_tokens; left > 0;) {
    // The last position that can be fed is capacity - 1; its logits give one token more.
    int64_t steps = left;
    for (int i = 0; i < runner.sequences(); ++i) {
      if (ended[static_cast<size_t>(i)]) {
        continue;
      }
      const int64_t room = runner.capacity() - runner.position(i);
      if (room == 0) {
        takers.end(i, Stop::context);
        runner.end(i);
      } else {
        steps = std::min(steps, room);
      }
    }
    if (std::find(ended.begin(), ended.end(), false) == ended.end()) {
      return {};
    }
    WEFT_TRY(runner.decode(steps, ends, [&](int sequence, int32_t token) {
      return takers.take(sequence, token, false);
    }));
    left -= steps;
  }
  return {};
}

Result<std::vector<Generation>> Engine::generate_batch(std::span<const Prompt> prompts,
                                                       const SamplingOptions& sampling,
                                                       int64_t max_tokens, const OnToken& on_token,
                                                       Eos eos) {
  Runner& runner = *state_->runner;
  if (prompts.size() != static_cast<size_t>(runner.sequences())) {
    return usage_error(fmt::format("{} prompts for an engine of {} sequences: give one for each",
                                   prompts.size(), runner.sequences()));
  }
  std::vector<Runner::Tokens> tokens;
  for (const Prompt& prompt : prompts) {
    WEFT_TRY(state_->check(prompt, prompts.size() == 1
                                       ? std::string("the prompt")
                                       : fmt::format("prompt {}", tokens.size() + 1)));
    tokens.emplace_back(prompt);
  }
  state_->ended.assign(prompts.size(), false);
  Takers takers(state_->config, eos, on_token, state_->ended);
  if (max_tokens > 0) {
    WEFT_TRY(runner.begin(tokens, sampling, [&](int sequence, int32_t token) {
      return takers.take(sequence, token, true);
    }));
    WEFT_TRY(decode(max_tokens - 1, eos, takers));
  }
  return takers.release();
}

Result<Generation> Engine::generate(std::span<const int32_t> prompt,
                                    const SamplingOptions& sampling, int64_t max_tokens,
                                    const std::function<bool(int32_t)>& on_token, Eos eos) {
  const Prompt prompts[] = {{prompt.begin(), prompt.end()}};
  WEFT_ASSIGN(std::vector<Generation> results,
              generate_batch(
                  prompts, sampling, max_tokens,
                  [&](int, int32_t token) { return !on_token || on_token(token); }, eos));
  return std::move(results.front());
}

Result<std::vector<Generation>> Engine::extend(int64_t max_tokens, const OnToken& on_token,
                                               Eos eos) {
  if (state_->runner->position(0) == 0) {
    return usage_error("there is no sequence to extend: generate first");
  }
  Takers takers(state_->config, eos, on_token, state_->ended);
  WEFT_TRY(decode(max_tokens, eos, takers));
  return takers.release();
}

Result<Score> Engine::score(std::span<const int32_t> ids) {
  WEFT_TRY(state_->check(ids, "the prompt"));
  return state_->runner->score(ids);
}

}  // namespace weft
