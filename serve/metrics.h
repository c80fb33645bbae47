// What the server counts and times, as Prometheus reads it; vLLM's names where they mean the same.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/slots.h"

namespace weft::serve {

/// Observations counted in buckets; `bounds` rise.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  void print(std::string& out, std::string_view name, std::string_view help,
             std::string_view labels) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;  // one more than bounds
  double sum_ = 0;
};

/// Used on the server's thread alone.
struct Metrics {
  Metrics();

  Histogram time_to_first_token, inter_token_latency, e2e_latency, queue_time, prefill_time,
      decode_time, inference_time, time_per_output_token;     // seconds
  Histogram prompt_tokens, generation_tokens, max_tokens, n;  // of a request
  uint64_t prompt_tokens_total = 0, generation_tokens_total = 0, cached_tokens_total = 0;
  std::map<std::string, uint64_t, std::less<>> finished;  ///< choices by finish_reason
  std::map<std::string, uint64_t, std::less<>> refused;   ///< requests by reason

  /// The page at /metrics.
  std::string page(std::string_view model, const SlotsStatus& slots, size_t connections) const;
};

}  // namespace weft::serve
