#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "arch/cpu/threads.h"
#include "engine/cpu_interpreter.h"
#include "engine/worker_team.h"
#include "program/planner.h"

namespace weft {
namespace {

// Scoring keeps logits of all rows, so its chunks are smaller than prefill's.
constexpr int64_t kScoreRows = 128;

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
  State(ModelConfig c, Weights w, CpuSequence s, int workers, int64_t chunk_rows, bool round)
      : config(std::move(c)),
        weights(std::move(w)),
        sequence(std::move(s)),
        team(workers),
        interpreter(config, weights, sequence, team),
        chunk(chunk_rows),
        round_activations(round) {}

  ModelConfig config;
  Weights weights;
  CpuSequence sequence;
  WorkerTeam team;
  CpuInterpreter interpreter;
  int64_t chunk;
  bool round_activations;
  // Programs, made when first needed.
  using Loaded = std::shared_ptr<CpuInterpreter::Loaded>;
  Loaded decode, chunk_middle, chunk_last, chunk_score;
  Loaded last;  // the one that drew the last token

  PlanOptions options(int64_t rows, Logits logits, bool sample) const {
    return {team.size(), rows, sequence.capacity, sequence.kv, round_activations, logits, sample};
  }
  Status ensure(Loaded& program, const PlanOptions& plan_options) {
    if (program == nullptr) {
      WEFT_ASSIGN(program, interpreter.load(plan(config, weights, plan_options)));
    }
    return {};
  }
  Status check(std::span<const int32_t> ids) const;
  void begin(const SamplingOptions& sampling) {
    sequence.history.clear();
    sequence.sampling = sampling;
  }
  /// Puts ids[begin, end) into the step's rows.
  void feed(std::span<const int32_t> ids, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sequence.tokens[static_cast<size_t>(i - begin)] = ids[static_cast<size_t>(i)];
      sequence.positions[static_cast<size_t>(i - begin)] = static_cast<int32_t>(i);
    }
  }
};

Status Engine::State::check(std::span<const int32_t> ids) const {
  if (ids.empty()) {
    return input_error("the prompt has no tokens: give at least one");
  }
  if (static_cast<int64_t>(ids.size()) > sequence.capacity) {
    return input_error(fmt::format(
        "the prompt has {} tokens but the context holds {}: shorten the prompt{}", ids.size(),
        sequence.capacity, sequence.capacity < config.context ? " or raise --context" : ""));
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
  const int workers = options.workers > 0 ? options.workers : cpu::usable_cpus();
  const int64_t capacity = options.context > 0 ? options.context : config.context;
  const DType kv = options.kv.value_or(default_kv(config, weights));
  const int64_t chunk = std::max<int64_t>(2, options.chunk);
  const bool round = options.round_activations.value_or(config.hidden >= kRoundedHidden);
  WEFT_ASSIGN(CpuSequence sequence,
              CpuSequence::create(config, capacity, kv, std::max(chunk, kScoreRows)));
  return std::unique_ptr<Engine>(new Engine(std::make_unique<State>(
      std::move(config), std::move(weights), std::move(sequence), workers, chunk, round)));
}

const ModelConfig& Engine::config() const { return state_->config; }
const Weights& Engine::weights() const { return state_->weights; }
int Engine::workers() const { return state_->team.size(); }
int64_t Engine::context() const { return state_->sequence.capacity; }
DType Engine::kv() const { return state_->sequence.kv; }
int64_t Engine::chunk() const { return state_->chunk; }

std::span<const float> Engine::last_logits() const {
  return state_->last == nullptr ? std::span<const float>{} : CpuInterpreter::logits(*state_->last);
}

Cost Engine::prefill_cost(int64_t tokens) const {
  const State& s = *state_;
  Cost sum;
  for (int64_t begin = 0; begin < tokens; begin += s.chunk) {
    const int64_t rows = std::min(s.chunk, tokens - begin);
    const Logits logits = begin + rows < tokens ? Logits::none : Logits::last;
    sum += cost_of(plan(s.config, s.weights, s.options(s.chunk, logits, logits == Logits::last)),
                   s.weights, rows, begin);
  }
  return sum;
}

Cost Engine::decode_cost(int64_t position) const {
  const State& s = *state_;
  return cost_of(plan(s.config, s.weights, s.options(1, Logits::last, true)), s.weights, 1,
                 position);
}

int64_t Engine::kv_bytes(int64_t positions) const {
  const ModelConfig& config = state_->config;
  return 2 * config.layers * config.kv_size() * positions *
         static_cast<int64_t>(size_of(state_->sequence.kv));
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

Status Engine::decode(int64_t max_tokens, const std::function<bool(int32_t)>& take, Stop& stop) {
  State& s = *state_;
  // The last position that can be fed is capacity - 1; its logits give one token more.
  const int64_t steps = std::min(max_tokens, s.sequence.capacity - s.sequence.positions[0]);
  stop = steps < max_tokens ? Stop::context : Stop::length;
  if (steps > 0) {
    WEFT_TRY(s.ensure(s.decode, s.options(1, Logits::last, true)));
    s.last = s.decode;
    s.interpreter.run(*s.decode, 1, steps, take);
  }
  return {};
}

Result<Generation> Engine::generate(std::span<const int32_t> prompt,
                                    const SamplingOptions& sampling, int64_t max_tokens,
                                    const std::function<bool(int32_t)>& on_token, Eos eos) {
  State& s = *state_;
  WEFT_TRY(s.check(prompt));
  Generation result;
  s.begin(sampling);
  if (max_tokens <= 0) {
    return result;
  }
  const auto length = static_cast<int64_t>(prompt.size());
  s.sequence.history.assign(prompt.begin(), prompt.end());
  Taker taker(s.config, on_token, eos, result);
  for (int64_t begin = 0; begin < length; begin += s.chunk) {
    const int64_t end = std::min(begin + s.chunk, length);
    s.feed(prompt, begin, end);
    if (end < length) {
      WEFT_TRY(s.ensure(s.chunk_middle, s.options(s.chunk, Logits::none, false)));
      s.interpreter.run(*s.chunk_middle, end - begin, 1, {});
    } else {
      WEFT_TRY(s.ensure(s.chunk_last, s.options(s.chunk, Logits::last, true)));
      s.last = s.chunk_last;
      s.interpreter.run(*s.chunk_last, end - begin, 1,
                        [&](int32_t token) { return taker.take(token, true); });
    }
  }
  if (!taker.ended()) {
    Stop stop = Stop::length;
    WEFT_TRY(decode(
        max_tokens - 1, [&](int32_t token) { return taker.take(token, false); }, stop));
    result.stop = taker.ended() ? result.stop : stop;
  }
  return result;
}

Result<Generation> Engine::extend(int64_t max_tokens, const std::function<bool(int32_t)>& on_token,
                                  Eos eos) {
  if (state_->sequence.history.empty()) {
    return usage_error("there is no sequence to extend: generate first");
  }
  Generation result;
  Taker taker(state_->config, on_token, eos, result);
  Stop stop = Stop::length;
  WEFT_TRY(decode(
      max_tokens, [&](int32_t token) { return taker.take(token, false); }, stop));
  result.stop = taker.ended() ? result.stop : stop;
  return result;
}

Result<Score> Engine::score(std::span<const int32_t> ids) {
  State& s = *state_;
  WEFT_TRY(s.check(ids));
  WEFT_TRY(s.ensure(s.chunk_score, s.options(kScoreRows, Logits::all, false)));
  s.begin({});
  const auto length = static_cast<int64_t>(ids.size());
  const auto vocabulary = static_cast<size_t>(s.config.vocabulary);
  Score result;
  for (int64_t begin = 0; begin < length; begin += kScoreRows) {
    const int64_t end = std::min(begin + kScoreRows, length);
    s.feed(ids, begin, end);
    s.interpreter.run(*s.chunk_score, end - begin, 1, {});
    const std::span<const float> logits = CpuInterpreter::logits(*s.chunk_score);
    for (int64_t i = begin; i < end; ++i) {
      const auto row = logits.subspan(static_cast<size_t>(i - begin) * vocabulary, vocabulary);
      if (i + 1 < length) {
        const auto next = static_cast<size_t>(ids[static_cast<size_t>(i) + 1]);
        result.logprobs.push_back(static_cast<double>(row[next]) - log_sum_exp(row));
      } else {
        result.last_logits.assign(row.begin(), row.end());
      }
    }
  }
  return result;
}

}  // namespace weft
