// The score of a text where only decode steps are to be had.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "engine/runner.h"

namespace weft {

/// The natural log-probability of a token after logits [vocabulary].
float logprob_of(std::span<const float> logits, int32_t token);

/// `step(i)` feeds ids[i] at position i and gives the logits after it, which the next call may
/// overwrite. Fails as `step` does.
Result<Score> score_by_steps(std::span<const int32_t> ids,
                             const std::function<Result<std::span<const float>>(size_t)>& step);

}  // namespace weft
