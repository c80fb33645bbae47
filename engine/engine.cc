#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "arch/cpu/threads.h"
#include "base/built.h"
#include "engine/cpu_runner.h"
#include "engine/hopper/runner.h"
#include "program/planner.h"

namespace weft {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// log(sum(exp(x))) of a row of logits.
double log_sum_exp(std::span<const float> row) {
  const double peak = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) {
    sum += std::exp(static_cast<double>(x) - peak);
  }
  return peak + std::log(sum);
}

}  // namespace

DType default_kv(const ModelConfig& config, const Weights& weights) {
  const bool bf16 = weights.get(Role::query, 0).dtype == DType::bf16;
  return bf16 && config.hidden >= kRoundedHidden ? DType::bf16 : DType::f32;
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
  int64_t chunk = 0;
  std::unique_ptr<Runner> runner;

  Status check(std::span<const int32_t> ids) const;
  /// The program of a step, for what it costs.
  Program program(int64_t rows, Logits logits) const {
    PlanOptions options;
    options.rows = rows;
    options.capacity = runner->capacity();
    options.kv = runner->kv();
    options.logits = logits;
    options.sample = logits == Logits::last;
    return plan(config, weights, options);
  }
};

Status Engine::State::check(std::span<const int32_t> ids) const {
  if (ids.empty()) {
    return input_error("the prompt has no tokens: give at least one");
  }
  const int64_t capacity = runner->capacity();
  if (static_cast<int64_t>(ids.size()) > capacity) {
    return input_error(
        fmt::format("the prompt has {} tokens but the context holds {}: shorten the prompt{}",
                    ids.size(), capacity, capacity < config.context ? " or raise --context" : ""));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocabulary) {
      return input_error(fmt::format("token {} of the prompt is {}: the model's ids are 0 to {}", i,
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
  auto state = std::make_unique<State>();
  state->config = std::move(config);
  state->weights = std::move(weights);
  state->chunk = std::max<int64_t>(2, options.chunk);
  const ModelConfig& kept = state->config;
  const int64_t capacity = options.context > 0 ? options.context : kept.context;
  const DType kv = options.kv.value_or(default_kv(kept, state->weights));
  const bool round_activations = options.round_activations.value_or(kept.hidden >= kRoundedHidden);
  if (options.device.starts_with("cuda")) {
    if constexpr (built::kCuda) {
      WEFT_ASSIGN(state->runner, hopper::create_runner(kept, state->weights,
                                                       {.device = options.device,
                                                        .workers = options.workers,
                                                        .capacity = capacity,
                                                        .kv = kv,
                                                        .round_activations = round_activations,
                                                        .weights_seed = options.weights_seed,
                                                        .profile = options.profile}));
    } else {
      return device_error(
          fmt::format("device {} cannot be had: this build has no CUDA kernels", options.device));
    }
  } else {
    WEFT_ASSIGN(
        state->runner,
        CpuRunner::create(kept, state->weights,
                          {.workers = options.workers > 0 ? options.workers : cpu::usable_cpus(),
                           .capacity = capacity,
                           .kv = kv,
                           .round_activations = round_activations,
                           .chunk = state->chunk,
                           .profile = options.profile}));
  }
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

const ModelConfig& Engine::config() const { return state_->config; }
const Weights& Engine::weights() const { return state_->weights; }
int Engine::workers() const { return state_->runner->workers(); }
int64_t Engine::context() const { return state_->runner->capacity(); }
DType Engine::kv() const { return state_->runner->kv(); }
int64_t Engine::chunk() const { return state_->chunk; }
std::span<const float> Engine::last_logits() const { return state_->runner->logits(); }
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
  return cost_of(s.program(1, Logits::last), s.weights, 1, position);
}

int64_t Engine::kv_bytes(int64_t positions) const {
  const ModelConfig& config = state_->config;
  return 2 * config.layers * config.kv_size() * positions *
         static_cast<int64_t>(size_of(state_->runner->kv()));
}

namespace {

/// Takes tokens as they are drawn: times each from the one before, and says when to end.
class Taker {
 public:
  Taker(const ModelConfig& config, const std::function<bool(int32_t)>& on_token, Eos eos,
        Generation& result)
      : config_(config), on_token_(on_token), eos_(eos), result_(result) {}

  /// True: go on. The first token's time is prefill's when `prefill` is set.
  bool take(int32_t token, bool prefill) {
    const double seconds = seconds_since(start_);
    start_ = std::chrono::steady_clock::now();
    if (prefill) {
      result_.prefill_seconds = seconds;
    } else {
      result_.decode_seconds.push_back(seconds);
    }
    if (eos_ == Eos::ends &&
        std::find(config_.eos.begin(), config_.eos.end(), token) != config_.eos.end()) {
      result_.stop = Stop::eos;
      ended_ = true;
      return false;
    }
    result_.tokens.push_back(token);
    if (on_token_ && !on_token_(token)) {
      result_.stop = Stop::caller;
      ended_ = true;
    }
    return !ended_;
  }
  bool ended() const { return ended_; }

 private:
  const ModelConfig& config_;
  const std::function<bool(int32_t)>& on_token_;
  Eos eos_;
  Generation& result_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool ended_ = false;
};

}  // namespace

Status Engine::decode(int64_t max_tokens, Eos eos, const std::function<bool(int32_t)>& take,
                      Stop& stop) {
  Runner& runner = *state_->runner;
  // The last position that can be fed is capacity - 1; its logits give one token more.
  const int64_t steps = std::min(max_tokens, runner.capacity() - runner.position());
  stop = steps < max_tokens ? Stop::context : Stop::length;
  const std::span<const int32_t> ends =
      eos == Eos::ends ? std::span<const int32_t>(state_->config.eos) : std::span<const int32_t>{};
  return steps > 0 ? runner.decode(steps, ends, take) : Status{};
}

Result<Generation> Engine::generate(std::span<const int32_t> prompt,
                                    const SamplingOptions& sampling, int64_t max_tokens,
                                    const std::function<bool(int32_t)>& on_token, Eos eos) {
  WEFT_TRY(state_->check(prompt));
  Generation result;
  if (max_tokens <= 0) {
    return result;
  }
  Taker taker(state_->config, on_token, eos, result);
  WEFT_TRY(state_->runner->begin(prompt, sampling,
                                 [&](int32_t token) { return taker.take(token, true); }));
  if (!taker.ended()) {
    Stop stop = Stop::length;
    WEFT_TRY(decode(
        max_tokens - 1, eos, [&](int32_t token) { return taker.take(token, false); }, stop));
    result.stop = taker.ended() ? result.stop : stop;
  }
  return result;
}

Result<Generation> Engine::extend(int64_t max_tokens, const std::function<bool(int32_t)>& on_token,
                                  Eos eos) {
  if (state_->runner->position() == 0) {
    return usage_error("there is no sequence to extend: generate first");
  }
  Generation result;
  Taker taker(state_->config, on_token, eos, result);
  Stop stop = Stop::length;
  WEFT_TRY(decode(
      max_tokens, eos, [&](int32_t token) { return taker.take(token, false); }, stop));
  result.stop = taker.ended() ? result.stop : stop;
  return result;
}

Result<Score> Engine::score(std::span<const int32_t> ids) {
  WEFT_TRY(state_->check(ids));
  const auto length = static_cast<int64_t>(ids.size());
  Score result;
  WEFT_TRY(state_->runner->score(ids, [&](int64_t i, std::span<const float> row) {
    if (i + 1 < length) {
      const auto next = static_cast<size_t>(ids[static_cast<size_t>(i) + 1]);
      result.logprobs.push_back(static_cast<double>(row[next]) - log_sum_exp(row));
    } else {
      result.last_logits.assign(row.begin(), row.end());
    }
  }));
  return result;
}

}  // namespace weft
