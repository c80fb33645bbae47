#include "engine/score.h"

#include <iterator>

#include "ops/token_logprob/op.h"

namespace weft {

float logprob_of(std::span<const float> logits, int32_t token) {
  float logprob = 0;
  cpu::token_logprob({.logits = {logits.data(), DType::f32, std::ssize(logits)},
                      .tokens = &token,
                      .columns = std::ssize(logits),
                      .out = &logprob},
                     {0, 1});
  return logprob;
}

Result<Score> score_by_steps(std::span<const int32_t> ids,
                             const std::function<Result<std::span<const float>>(size_t)>& step) {
  Score score;
  for (size_t i = 0; i < ids.size(); ++i) {
    WEFT_ASSIGN(const std::span<const float> logits, step(i));
    if (i + 1 == ids.size()) {
      score.last_logits.assign(logits.begin(), logits.end());
    } else {
      score.logprobs.push_back(logprob_of(logits, ids[i + 1]));
    }
  }
  return score;
}

}  // namespace weft
