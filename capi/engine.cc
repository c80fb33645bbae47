// The C interface's models.
#include "engine/engine.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "capi/interface.h"

struct weft_engine {
  std::unique_ptr<weft::Engine> engine;
  std::vector<weft::Generation> generations;  ///< of the last weft_generate()
  const int32_t* cancel = nullptr;            ///< the running call's

  bool cancelled() const {
    return cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0;
  }
};

static_assert(WEFT_STOP_EOS == static_cast<int>(weft::Stop::eos) &&
              WEFT_STOP_LENGTH == static_cast<int>(weft::Stop::length) &&
              WEFT_STOP_CONTEXT == static_cast<int>(weft::Stop::context) &&
              WEFT_STOP_CALLER == static_cast<int>(weft::Stop::caller));

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

namespace {

Result<std::optional<DType>> float_format(int32_t format, std::string_view name) {
  if (format < 0) {
    return std::optional<DType>{};
  }
  if (format != WEFT_F32 && format != WEFT_BF16) {
    return usage_error(
        fmt::format("{} {} is not known: use WEFT_F32, WEFT_BF16 or -1", name, format));
  }
  return std::optional(static_cast<DType>(format));
}

Result<EngineOptions> to_options(const weft_engine_options* given) {
  EngineOptions result;
  if (given == nullptr) {
    return result;
  }
  WEFT_ASSIGN(const weft_engine_options options,
              read(given, "options", weft_engine_options WEFT_ENGINE_OPTIONS_INIT));
  if (options.workers < 0 || options.sequences < 0 || options.context < 0) {
    return usage_error(fmt::format("workers {}, sequences {} and context {} must not be negative",
                                   options.workers, options.sequences, options.context));
  }
  result.device = options.device != nullptr ? options.device : "cpu";
  const std::string_view kind = std::string_view(result.device).substr(0, result.device.find(':'));
  if (result.device != "cpu" && kind != "cuda") {
    return usage_error(fmt::format("device {} runs no models: use cpu or cuda", result.device));
  }
  result.workers = options.workers;
  result.sequences = std::max(options.sequences, 1);
  result.context = options.context;
  WEFT_ASSIGN(result.kv, float_format(options.kv, "kv"));
  WEFT_ASSIGN(const std::optional<DType> activations,
              float_format(options.activations, "activations"));
  if (activations) {
    result.round_activations = *activations == DType::bf16;
  }
  if (options.compressed >= 0) {
    result.compress_weights = options.compressed != 0;
  }
  return result;
}

/// As the command's options: NaN is refused with all else that is out of bounds.
Result<SamplingOptions> to_sampling(const weft_generate_options& s) {
  const auto within = [](float x, float least, float most) { return x >= least && x <= most; };
  if (!within(s.temperature, 0, 100) || !within(s.top_p, 0, 1) || !within(s.min_p, 0, 1) ||
      !within(s.repetition_penalty, 0.01F, 100) || s.top_k < 0) {
    return usage_error(
        fmt::format("sampling with temperature {} (0 to 100), top_k {} (0 or more), top_p {} (0 to "
                    "1), min_p {} (0 to "
                    "1), repetition_penalty {} (0.01 to 100) is out of these bounds",
                    s.temperature, s.top_k, s.top_p, s.min_p, s.repetition_penalty));
  }
  return SamplingOptions{.temperature = s.temperature,
                         .top_k = s.top_k,
                         .top_p = s.top_p,
                         .min_p = s.min_p,
                         .repetition_penalty = s.repetition_penalty,
                         .seed = s.seed};
}

weft_generation to_c(const Generation& g) {
  return {.ids = g.tokens.data(),
          .count = g.tokens.size(),
          .stop = static_cast<int32_t>(g.stop),
          .reserved = 0,
          .prefill_seconds = g.prefill_seconds,
          .decode_seconds = std::accumulate(g.decode_seconds.begin(), g.decode_seconds.end(), 0.0)};
}

/// Prompts from `first` on, as many as the engine decodes at once; where fewer are left, the others
/// are fed the first and end with their first token.
Result<std::vector<Generation>> generate_group(
    weft_engine& engine, std::span<const Engine::Prompt> prompts, SamplingOptions sampling,
    size_t first, int64_t max_tokens, const std::function<bool(size_t, int32_t)>& take, Eos eos) {
  const auto at_once = static_cast<size_t>(engine.engine->sequences());
  const size_t count = std::min(at_once, prompts.size() - first);
  std::vector<Engine::Prompt> group(prompts.begin() + static_cast<ptrdiff_t>(first),
                                    prompts.begin() + static_cast<ptrdiff_t>(first + count));
  group.resize(at_once, prompts[first]);
  sampling.seed += first;
  WEFT_ASSIGN(std::vector<Generation> results, engine.engine->generate_batch(
                                                   group, sampling, max_tokens,
                                                   [&](int sequence, int32_t token) {
                                                     const auto i = static_cast<size_t>(sequence);
                                                     return i < count && take(first + i, token);
                                                   },
                                                   eos));
  results.resize(count);
  return results;
}

}  // namespace

weft_status weft_engine_open(const char* directory, const weft_engine_options* given,
                             weft_engine** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(directory, "directory"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(EngineOptions options, to_options(given));
    WEFT_ASSIGN(ModelConfig config, read_config(directory));
    WEFT_ASSIGN(Weights weights, Weights::open(directory, config));
    auto result = std::make_unique<weft_engine>();
    options.interrupted = [engine = result.get()] { return engine->cancelled(); };
    WEFT_ASSIGN(result->engine, Engine::create(std::move(config), std::move(weights), options));
    *out = result.release();
    return {};
  });
}

void weft_engine_close(weft_engine* engine) { delete engine; }

weft_status weft_engine_describe(const weft_engine* engine, weft_engine_info* out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(engine, "engine"));
    WEFT_TRY(check_pointer(out, "out"));
    const ModelConfig& config = engine->engine->config();
    *out = {.vocabulary = config.vocabulary,
            .layers = config.layers,
            .hidden = config.hidden,
            .context = engine->engine->context(),
            .sequences = engine->engine->sequences(),
            .workers = engine->engine->workers()};
    return {};
  });
}

namespace {

/// Runs a call that `cancel` may end.
template <class F>
weft_status cancellable(weft_engine* engine, const int32_t* cancel, F&& body) {
  if (engine == nullptr) {
    return failed(usage_error("engine is null"));
  }
  engine->cancel = cancel;
  const weft_status status = guarded(body);
  const bool cancelled = engine->cancelled();
  engine->cancel = nullptr;
  return cancelled ? failed(WEFT_CANCELLED, "the call was cancelled") : status;
}

/// Continues `prompts`, group by group, into engine.generations.
Status generate_all(weft_engine& engine, std::span<const Engine::Prompt> prompts,
                    const weft_generate_options& options) {
  WEFT_ASSIGN(const SamplingOptions sampling, to_sampling(options));
  if (options.max_tokens < 0) {
    return usage_error(fmt::format("max_tokens {} must not be negative", options.max_tokens));
  }
  const auto take = [&](size_t sequence, int32_t token) {
    return !engine.cancelled() &&
           (options.on_token == nullptr || options.on_token(options.user, sequence, token) != 0);
  };
  engine.generations.clear();
  while (engine.generations.size() < prompts.size() && !engine.cancelled()) {
    WEFT_ASSIGN(
        std::vector<Generation> results,
        generate_group(engine, prompts, sampling, engine.generations.size(), options.max_tokens,
                       take, options.ignore_eos != 0 ? Eos::ignore : Eos::ends));
    std::move(results.begin(), results.end(), std::back_inserter(engine.generations));
  }
  return {};
}

}  // namespace

weft_status weft_generate(weft_engine* engine, const weft_tokens* prompts, size_t count,
                          const weft_generate_options* given, weft_generation* out) {
  weft_generate_options options = WEFT_GENERATE_OPTIONS_INIT;
  const weft_status read_status = guarded([&]() -> Status {
    WEFT_ASSIGN(options, read(given != nullptr ? given : &options, "options", options));
    return {};
  });
  if (read_status != WEFT_OK) {
    return read_status;
  }
  return cancellable(engine, options.cancel, [&]() -> Status {
    WEFT_TRY(count == 0 ? Status() : check_pointer(prompts, "prompts"));
    WEFT_TRY(count == 0 ? Status() : check_pointer(out, "out"));
    std::vector<Engine::Prompt> all;
    for (size_t i = 0; i < count; ++i) {
      WEFT_TRY(prompts[i].count == 0 ? Status() : check_pointer(prompts[i].ids, "a prompt's ids"));
      all.emplace_back(prompts[i].ids, prompts[i].ids + prompts[i].count);
    }
    WEFT_TRY(generate_all(*engine, all, options));
    std::transform(engine->generations.begin(), engine->generations.end(), out, to_c);
    return {};
  });
}

weft_status weft_score(weft_engine* engine, const int32_t* ids, size_t count, const int32_t* cancel,
                       double* logprobs, float* logits) {
  return cancellable(engine, cancel, [&]() -> Status {
    WEFT_TRY(count == 0 ? Status() : check_pointer(ids, "ids"));
    WEFT_ASSIGN(const Score score, engine->engine->score({ids, count}));
    if (logprobs != nullptr) {
      std::copy(score.logprobs.begin(), score.logprobs.end(), logprobs);
    }
    if (logits != nullptr) {
      std::copy(score.last_logits.begin(), score.last_logits.end(), logits);
    }
    return {};
  });
}
