// sample: the next token from a row of logits. In this order: repetition penalty (Keskar et al.
// 2019) over the tokens so far, temperature, top-k, min-p, top-p (nucleus, Holtzman et al. 2020), a
// draw with a counter-based generator: (seed, draw) alone decide the random number.
// "Best" orders by logit, then by the lower id. top-k keeps the k best; min-p drops what has less
// than min_p times the best's probability; top-p keeps the fewest best whose probabilities reach
// top_p of the sum of what min-p left. The draw walks what is left in rising id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft {

struct SamplingOptions {
  float temperature = 0;         ///< 0: greedy, the lowest id among equals
  int32_t top_k = 0;             ///< 0: off
  float top_p = 1;               ///< 1: off
  float min_p = 0;               ///< 0: off
  float repetition_penalty = 1;  ///< 1: off
  uint64_t seed = 0;
};

struct SampleArgs {
  float* logits = nullptr;  ///< [vocabulary]; the penalty is applied in place
  int64_t vocabulary = 0;
  SamplingOptions options;
  std::span<const int32_t> history;  ///< tokens so far, prompt included
  uint64_t draw = 0;                 ///< counter of this draw: the new token's position
};

/// A number in [0, 1) from (seed, draw): 24 bits of a 64-bit mix.
float uniform_draw(uint64_t seed, uint64_t draw);

namespace reference {
/// In double, by sorting: the token for a given uniform number.
int32_t sample(const SampleArgs& args, double uniform);
/// All tokens, in rising order, that are right where sums of probabilities are good to `near` of
/// their total only, so that the uniform number and top_p are, and min_p to `near` of itself.
std::vector<int32_t> right_tokens(const SampleArgs& args, double uniform, double near);
}  // namespace reference
namespace cpu {
/// `scratch` holds sample_scratch_bytes(), 64-byte aligned. NaN logits count as -infinity.
int32_t sample(const SampleArgs& args, std::span<std::byte> scratch);
size_t sample_scratch_bytes(int64_t vocabulary);
}  // namespace cpu

}  // namespace weft
