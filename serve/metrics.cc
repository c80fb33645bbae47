#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "ops/matrix.h"

namespace weft::serve {
namespace {

// A step takes 50 us and more, a long answer minutes.
constexpr std::array kSeconds{50e-6, 100e-6, 200e-6, 300e-6, 400e-6, 500e-6, 750e-6, .001, .0015,
                              .002,  .003,   .005,   .0075,  .01,    .02,    .04,    .06,  .08,
                              .1,    .25,    .5,     .75,    1.,     2.5,    5.,     7.5,  10.,
                              20.,   40.,    80.,    160.,   640.,   2560.};
constexpr std::array kTokens{1.,   2.,    5.,    10.,   20.,    50.,    100.,   200.,
                             500., 1000., 2000., 5000., 10000., 20000., 50000., 100000.};
constexpr std::array kChoices{1., 2., 5., 10., 20., 50., 128.};

void print_head(std::string& out, std::string_view name, std::string_view help,
                std::string_view type) {
  out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds), counts_(bounds.size() + 1, 0) {}

void Histogram::observe(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(at - bounds_.begin())];
  sum_ += value;
}

void Histogram::print(std::string& out, std::string_view name, std::string_view help,
                      std::string_view labels) const {
  print_head(out, name, help, "histogram");
  uint64_t sum = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    sum += counts_[i];
    const std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, sum);
  }
  out += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, sum);
}

Metrics::Metrics()
    : time_to_first_token(kSeconds),
      inter_token_latency(kSeconds),
      e2e_latency(kSeconds),
      queue_time(kSeconds),
      prefill_time(kSeconds),
      decode_time(kSeconds),
      inference_time(kSeconds),
      time_per_output_token(kSeconds),
      prompt_tokens(kTokens),
      generation_tokens(kTokens),
      max_tokens(kTokens),
      n(kChoices) {}

std::string Metrics::page(std::string_view model, const SlotsStatus& slots,
                          size_t connections) const {
  const std::string labels =
      fmt::format("model_name={},engine=\"0\"", nlohmann::json(model).dump());
  std::string out;
  const auto plain = [&](std::string_view name, std::string_view help, std::string_view type,
                         auto value) {
    print_head(out, name, help, type);
    out += fmt::format("{}{{{}}} {}\n", name, labels, value);
  };
  plain("vllm:num_requests_running", "Sequences in slots.", "gauge", slots.running);
  plain("vllm:num_requests_waiting", "Sequences that wait for a slot.", "gauge", slots.queued);
  plain("vllm:kv_cache_usage_perc", "Pages of the KV cache in use, 1 is all.", "gauge",
        slots.pages == 0
            ? 0.0
            : static_cast<double>(slots.pages_used) / static_cast<double>(slots.pages));
  print_head(out, "vllm:cache_config_info", "The KV cache.", "gauge");
  out += fmt::format("vllm:cache_config_info{{{},block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1\n",
                     labels, kKvPage, slots.pages);
  plain("weft:connections", "Connections that are open.", "gauge", connections);
  plain("vllm:prefix_cache_queries_total", "Tokens of prompts looked up in the cache.", "counter",
        prompt_tokens_total);
  plain("vllm:prefix_cache_hits_total", "Tokens of prompts found in the cache.", "counter",
        cached_tokens_total);
  plain("vllm:prompt_tokens_total", "Tokens of prompts.", "counter", prompt_tokens_total);
  plain("vllm:generation_tokens_total", "Tokens generated.", "counter", generation_tokens_total);
  plain("vllm:spec_decode_num_drafts_total", "Drafts.", "counter", slots.drafts);
  plain("vllm:spec_decode_num_draft_tokens_total", "Tokens drafted.", "counter", slots.drafted);
  plain("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right.", "counter",
        slots.accepted);
  const auto by = [&](std::string_view name, std::string_view help, std::string_view label,
                      const auto& counts) {
    print_head(out, name, help, "counter");
    for (const auto& [key, count] : counts) {
      out += fmt::format("{}{{{},{}=\"{}\"}} {}\n", name, labels, label, key, count);
    }
  };
  by("vllm:request_success_total", "Choices that ended.", "finished_reason", finished);
  by("weft:requests_refused_total", "Requests refused before any work.", "reason", refused);
  const auto print = [&](const Histogram& histogram, std::string_view name, std::string_view help) {
    histogram.print(out, name, help, labels);
  };
  print(time_to_first_token, "vllm:time_to_first_token_seconds",
        "From arrival to the first token.");
  print(inter_token_latency, "vllm:inter_token_latency_seconds", "Between a choice's tokens.");
  print(e2e_latency, "vllm:e2e_request_latency_seconds", "From arrival to the last token.");
  print(queue_time, "vllm:request_queue_time_seconds", "In the queue for a slot.");
  print(prefill_time, "vllm:request_prefill_time_seconds", "From the slot to the first token.");
  print(decode_time, "vllm:request_decode_time_seconds", "From the first token to the last.");
  print(inference_time, "vllm:request_inference_time_seconds", "From the slot to the last token.");
  print(time_per_output_token, "vllm:request_time_per_output_token_seconds",
        "From the first token to the last, by the tokens after the first.");
  print(prompt_tokens, "vllm:request_prompt_tokens", "Tokens of a request's prompts.");
  print(generation_tokens, "vllm:request_generation_tokens", "Tokens of a request's choices.");
  print(max_tokens, "vllm:request_params_max_tokens", "max_tokens of a request.");
  print(n, "vllm:request_params_n", "Choices of a request.");
  return out;
}

}  // namespace weft::serve
