// weft bench load: requests that come and go, and what each waits for. Latencies are defined as
// vLLM's benchmark has them: time to first token from a request's arrival; time per output token
// (TPOT) of a request, its first token left out; time between tokens (ITL) of each two that follow
// one another; end to end from arrival to the last token.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "arch/cpu/threads.h"
#include "arch/device.h"
#include "base/median.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/origin.h"
#include "cli/slot_flags.h"
#include "engine/slots.h"
#include "ops/matrix.h"

namespace weft::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct LoadFlags {
  ModelSource source;
  EngineFlags engine;
  SamplingOptions sampling;
  double rate = 0;
  int64_t clients = 8;
  int64_t requests = 0;
  int64_t prompt_tokens = 512;
  int64_t new_tokens = 128;
  int64_t common = 0;
  bool vary = false;
  int64_t pages = 0;
  int64_t slots = 0;
  int64_t prefill_chunk = 0;
  SlotFlags slot_options;
  std::string json;
};

/// What was measured, in seconds.
struct LoadFigures {
  std::vector<double> first, per_token, between, whole;
  int64_t tokens = 0;
  double seconds = 0;  ///< from the first arrival to the last end
  int64_t most_pages = 0;
  SlotsStatus counts;  ///< of this load alone, but for the longest pause
  std::map<RequestId, std::vector<int32_t>> answers;
  std::map<RequestId, std::vector<float>> logprobs;  ///< of answers' tokens, of who wants them
};

/// `share` of the values are at most this (nearest rank).
double percentile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(rank, 1, values.size()) - 1];
}

class Load {
 public:
  static Result<Load> make(const LoadFlags& flags);
  /// Serves `count` requests.
  Result<LoadFigures> measure(int64_t count);
  int64_t requests() const { return flags_.requests; }
  int64_t slots() const { return flags_.slots; }
  std::string text(const LoadFigures& figures) const;
  nlohmann::ordered_json json(const LoadFigures& figures) const;

 private:
  explicit Load(const LoadFlags& flags) : flags_(flags) {}

  struct Client {
    Clock::time_point arrival, first, last;
    int64_t tokens = 0;
    int64_t most = 0;  ///< after which it cancels
    bool wants_logprobs = false;
  };
  Status submit(Clock::time_point arrival);
  Request next_request();
  void vary(Request& request);
  /// 1 to `most`, drawn like prompts.
  int64_t draw(int64_t most) {
    return 1 + static_cast<int64_t>(uniform() * static_cast<float>(most));
  }
  bool closed() const { return flags_.rate == 0; }
  /// Of prompts, and of arrivals apart from them.
  float uniform() { return uniform_draw(flags_.sampling.seed + 1, draws_++); }
  float arrival() { return uniform_draw(flags_.sampling.seed + 2, arrivals_++); }

  LoadFlags flags_;
  DeviceInfo device_;
  std::unique_ptr<Slots> slots_;
  std::map<RequestId, Client> clients_;
  uint64_t draws_ = 0, arrivals_ = 0;
};

Result<Load> Load::make(const LoadFlags& flags) {
  Load load(flags);
  LoadFlags& own = load.flags_;
  WEFT_ASSIGN(const EngineOptions engine, flags.engine.options());
  own.engine.device = engine.device;
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  const bool cpu = engine.device == "cpu";
  if (!cpu) {
    WEFT_ASSIGN(const auto opened, open_device(engine.device));
    load.device_ = opened->info();
  }
  if (flags.common >= flags.prompt_tokens && flags.common > 0) {
    return usage_error(fmt::format("--common-tokens {} leaves nothing of a prompt of {}: use fewer",
                                   flags.common, flags.prompt_tokens));
  }
  const int64_t total = flags.prompt_tokens + flags.new_tokens;
  own.slots = flags.slots > 0 ? flags.slots : flags.clients;
  own.requests = flags.requests > 0 ? flags.requests : 4 * flags.clients;
  const int threads = engine.workers > 0 && cpu ? engine.workers : cpu::usable_cpus();
  WEFT_ASSIGN(Weights weights, load_weights(flags.source, config, engine, threads));
  SlotsOptions options;
  options.device = engine.device;
  options.workers = engine.workers;
  options.slots = own.slots;
  options.context = engine.context > 0 ? engine.context : std::min(config.context, total);
  options.prefill_chunk = flags.prefill_chunk;
  options.pages = flags.pages;
  flags.slot_options.apply(options);
  options.kv = engine.kv;
  options.round_activations = engine.round_activations;
  options.quantise_activations = engine.quantise_activations;
  options.compress_weights = engine.compress_weights;
  options.weights_seed = flags.source.seed;
  WEFT_ASSIGN(load.slots_, Slots::create(config, std::move(weights), options));
  return load;
}

Request Load::next_request() {
  Request request;
  const auto vocabulary = static_cast<float>(slots_->config().vocabulary);
  const int64_t length = flags_.vary ? draw(flags_.prompt_tokens) : flags_.prompt_tokens;
  for (int64_t i = 0; i < length; ++i) {
    const float drawn = i < flags_.common
                            ? uniform_draw(flags_.sampling.seed, static_cast<uint64_t>(i))
                            : uniform();
    request.prompt.push_back(static_cast<int32_t>(drawn * vocabulary));
  }
  request.max_tokens = flags_.new_tokens;
  request.sampling = flags_.sampling;
  request.sampling.seed += draws_;
  request.eos = Eos::ignore;
  if (flags_.vary) {
    vary(request);
  }
  return request;
}

void Load::vary(Request& request) {
  request.max_tokens = draw(flags_.new_tokens);
  if (draw(2) == 1) {
    request.sampling.temperature = 0.8f;
    request.sampling.top_k = static_cast<int32_t>(draw(50));
  }
  for (int i = 0; i < 4; ++i) {
    request.stop_ids.push_back(static_cast<int32_t>(draw(slots_->config().vocabulary) - 1));
  }
  request.want_logprob = draw(4) == 1;
}

Status Load::submit(Clock::time_point arrival) {
  Request request = next_request();
  const int64_t most = flags_.vary && draw(8) == 1 ? draw(request.max_tokens) : flags_.new_tokens;
  const bool wants_logprobs = request.want_logprob;
  WEFT_ASSIGN(const RequestId id, slots_->submit(std::move(request)));
  clients_[id] = {arrival, {}, {}, 0, most, wants_logprobs};
  return {};
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Result<LoadFigures> Load::measure(int64_t count) {
  LoadFigures figures;
  int64_t submitted = 0;
  int64_t ended = 0;
  const auto on_token = [&](const TokenEvent& event) {
    Client& client = clients_.at(event.id);
    if (client.tokens == client.most) {
      return;  // cancelled, but the step was under way
    }
    const Clock::time_point now = Clock::now();
    if (event.first) {
      client.first = now;
      figures.first.push_back(seconds_between(client.arrival, now));
    } else {
      figures.between.push_back(seconds_between(client.last, now));
    }
    client.last = now;
    ++client.tokens;
    ++figures.tokens;
    figures.answers[event.id].push_back(event.token);
    if (client.wants_logprobs) {
      figures.logprobs[event.id].push_back(event.logprob);
    }
    if (client.tokens == client.most && client.most < flags_.new_tokens) {
      slots_->cancel(event.id);
    }
  };
  const auto on_end = [&](const EndEvent& event) {
    const Client& client = clients_.at(event.id);
    if (client.tokens > 0) {
      figures.whole.push_back(seconds_between(client.arrival, client.last));
    }
    if (client.tokens > 1) {
      figures.per_token.push_back(seconds_between(client.first, client.last) /
                                  static_cast<double>(client.tokens - 1));
    }
    clients_.erase(event.id);
    ++ended;
  };
  const SlotsStatus before = slots_->status();
  const Clock::time_point start = Clock::now();
  Clock::time_point next = start;  // arrival, where they are not closed
  const auto due = [&] {
    return submitted < count &&
           (closed() ? submitted - ended < flags_.clients : next <= Clock::now());
  };
  while (ended < count) {
    while (due()) {
      WEFT_TRY(submit(closed() ? Clock::now() : next));
      ++submitted;
      if (!closed()) {
        const double gap = -std::log(1 - static_cast<double>(arrival())) / flags_.rate;
        next += std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap));
      }
    }
    WEFT_ASSIGN(const bool more, slots_->step(on_token, on_end));
    figures.most_pages = std::max(figures.most_pages, slots_->status().pages_used);
    if (!more && !closed() && submitted < count) {
      std::this_thread::sleep_until(next);
    }
  }
  figures.seconds = seconds_between(start, Clock::now());
  SlotsStatus& counts = figures.counts;
  counts = slots_->status();
  counts.prompt_tokens -= before.prompt_tokens;
  counts.cached_tokens -= before.cached_tokens;
  counts.drafted -= before.drafted;
  counts.accepted -= before.accepted;
  counts.pages_evicted -= before.pages_evicted;
  counts.pages_brought -= before.pages_brought;
  counts.mixed_steps -= before.mixed_steps;
  counts.prefill_pauses.count -= before.prefill_pauses.count;
  counts.prefill_pauses.seconds -= before.prefill_pauses.seconds;
  return figures;
}

std::string Load::text(const LoadFigures& figures) const {
  const SlotsStatus& status = figures.counts;
  const auto line = [](std::string_view name, const std::vector<double>& values) {
    return fmt::format("  {:<16} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f}\n", name, mean(values) * 1e3,
                       percentile(values, 0.5) * 1e3, percentile(values, 0.9) * 1e3,
                       percentile(values, 0.99) * 1e3);
  };
  std::string text = fmt::format(
      "{} on {}: {}, {} slots, {} requests of {} prompt and {} new tokens in {:.2f} s\n"
      "  output {:.1f} tokens/s, {:.2f} requests/s\n"
      "  {:<16} {:>9} {:>9} {:>9} {:>9}\n",
      slots_->config().name, flags_.engine.device,
      closed() ? fmt::format("{} clients", flags_.clients)
               : fmt::format("{:g} requests a second arrive", flags_.rate),
      flags_.slots, flags_.requests, flags_.prompt_tokens, flags_.new_tokens, figures.seconds,
      static_cast<double>(figures.tokens) / figures.seconds,
      static_cast<double>(figures.whole.size()) / figures.seconds, "ms", "mean", "p50", "p90",
      "p99");
  text += line("first token", figures.first) + line("a token", figures.per_token) +
          line("between tokens", figures.between) + line("whole answer", figures.whole);
  const Pauses& pauses = status.prefill_pauses;
  text += fmt::format(
      "  pauses for others' prompts: {}, {:.3f} s in all, {:.3f} ms the longest (warm-up "
      "included)\n",
      pauses.count, pauses.seconds, pauses.longest * 1e3);
  if (status.mixed_steps > 0) {
    text += fmt::format("  steps that fed prompts too: {}\n", status.mixed_steps);
  }
  text += fmt::format(
      "  pages of {} positions: {} of {} in use at most; {} of {} prompt tokens were "
      "cached\n",
      kKvPage, figures.most_pages, status.pages, status.cached_tokens, status.prompt_tokens);
  if (status.pages_host > 0) {
    text += fmt::format("  pages in host memory: {}, and {} were brought back\n", status.pages_host,
                        status.pages_brought);
  }
  if (status.drafted > 0) {
    text += fmt::format("  drafts: {} of {} tokens accepted\n", status.accepted, status.drafted);
  }
  return text;
}

nlohmann::ordered_json Load::json(const LoadFigures& figures) const {
  const auto spread = [](const std::vector<double>& values) {
    return nlohmann::ordered_json{{"mean", mean(values)},
                                  {"p50", percentile(values, 0.5)},
                                  {"p90", percentile(values, 0.9)},
                                  {"p99", percentile(values, 0.99)}};
  };
  const SlotsStatus& status = figures.counts;
  nlohmann::ordered_json out =
      origin(flags_.engine.device == "cpu" ? nullptr : &device_,
             fmt::format("all requests in one process, after {} to warm up", flags_.slots));
  out["model"] = slots_->config().name;
  out["arrivals"] = closed() ? "closed" : "Poisson";
  out["clients"] = flags_.clients;
  out["rate"] = flags_.rate;
  out["slots"] = flags_.slots;
  out["vary"] = flags_.vary;
  out["draft"] = flags_.slot_options.draft;
  out["exact"] = flags_.slot_options.exact;
  out["requests"] = flags_.requests;
  out["prompt_tokens"] = flags_.prompt_tokens;
  out["common_tokens"] = flags_.common;
  out["new_tokens"] = flags_.new_tokens;
  out["seed"] = flags_.sampling.seed;
  out["seconds"] = figures.seconds;
  out["tokens_per_second"] = static_cast<double>(figures.tokens) / figures.seconds;
  out["first_token_s"] = spread(figures.first);
  out["time_per_output_token_s"] = spread(figures.per_token);
  out["between_tokens_s"] = spread(figures.between);
  out["end_to_end_s"] = spread(figures.whole);
  out["mixed_steps"] = status.mixed_steps;
  out["prefill_pauses"] = {{"count", status.prefill_pauses.count},
                           {"seconds", status.prefill_pauses.seconds},
                           {"longest", status.prefill_pauses.longest}};
  out["pages"] = {{"positions", kKvPage},
                  {"all", status.pages},
                  {"most_used", figures.most_pages},
                  {"evicted", status.pages_evicted},
                  {"host", status.pages_host},
                  {"brought", status.pages_brought}};
  out["cached_tokens"] = status.cached_tokens;
  // The same seed asks the same, whoever answers and in whatever company.
  for (const auto& [id, tokens] : figures.answers) {
    out["answers"].push_back(tokens);
  }
  for (const auto& [id, logprobs] : figures.logprobs) {
    out["logprobs"].push_back(logprobs);
  }
  out["drafted"] = status.drafted;
  out["accepted"] = status.accepted;
  return out;
}

Result<int> bench_load(const LoadFlags& flags) {
  WEFT_ASSIGN(Load load, Load::make(flags));
  WEFT_TRY(load.measure(load.slots()));  // touches memory
  WEFT_ASSIGN(const LoadFigures figures, load.measure(load.requests()));
  if (!flags.json.empty()) {
    WEFT_TRY(write_text(flags.json, load.json(figures).dump(2) + "\n"));
  }
  if (flags.json != "-") {
    WEFT_TRY(write_text("-", load.text(figures)));
  }
  return 0;
}

}  // namespace

void add_bench_load(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("load", "Requests that come and go: what each waits for its tokens");
  auto flags = std::make_shared<LoadFlags>();
  flags->source.declare(*command, true);
  const auto count = [&](const char* name, int64_t& value, const char* what, int64_t least) {
    command->add_option(name, value, what)->type_name("N")->check(at_least(least));
  };
  command
      ->add_option("--rate", flags->rate,
                   "requests that arrive in a second (Poisson; default: --clients wait each for "
                   "its answer)")
      ->type_name("R")
      ->check(number_within(1e-6, 1e6));
  count("--clients", flags->clients, "that ask one request after another (8)", 1);
  count("--requests", flags->requests, "in all (four a client)", 1);
  count("--prompt-tokens", flags->prompt_tokens, "random tokens of a prompt (512)", 1);
  count("--common-tokens", flags->common, "that all prompts begin with (0)", 0);
  count("--new-tokens", flags->new_tokens, "tokens of an answer (128)", 1);
  command->add_flag("--vary", flags->vary,
                    "lengths are drawn, up to those given, and so is who samples, stops early or "
                    "cancels: for comparing answers");
  count("--pages", flags->pages, "of the KV cache (a context for each slot)", 1);
  count("--slots", flags->slots, "requests answered at once (--clients)", 1);
  count("--prefill-chunk", flags->prefill_chunk,
        "tokens of a prompt fed between two steps (128; on cuda 512)", 1);
  flags->slot_options.declare(*command);
  // --seed is that of prompts and arrivals, too.
  add_sampling_options(*command, flags->sampling);
  command->add_option("--json", flags->json, "write figures to this file; - for standard output")
      ->type_name("F");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return bench_load(*flags); }; });
}

}  // namespace weft::cli
