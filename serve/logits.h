// What a request asks of the logits before each draw: biases, penalties, tokens that may not come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "serve/choice.h"
#include "serve/grammar/matcher.h"
#include "serve/protocol/request.h"

namespace weft::serve {

/// As engine's Request::adjust.
using Adjust = std::function<void(std::span<const int32_t> generated, std::span<float> logits)>;

/// What an answer may say before what its grammar is about: a thought.
struct Opening {
  std::optional<int32_t> begins;  ///< there is one where the answer begins with this; none: always
  std::vector<int32_t> ends;      ///< the tokens that it ends with; the answer does not end before
};

/// logit_bias, presence_penalty and frequency_penalty (over the tokens generated),
/// allowed_token_ids, none of `ends` before min_tokens, no token that completes one of `banned`,
/// and what `grammar` (null: anything) allows behind the opening; empty when the request has none
/// of these.
Adjust adjust_of(const GenerateRequest& request, std::vector<int32_t> ends,
                 std::vector<std::vector<int32_t>> banned,
                 const std::shared_ptr<grammar::Grammar>& grammar, std::optional<Opening> opening);

/// The log-probability of token `id`, its rank and the `top` likeliest, as the softmax of these
/// logits says.
TokenLogprob logprob_of(std::span<const float> logits, int32_t id, int top);

/// Log-probabilities of a text's tokens after the first, made by drawing none but them.
struct TextScore {
  std::vector<TokenLogprob> tokens;
};
/// Forces the tokens of `text` after the first, of which a sequence begins; `score` takes each.
Adjust forced(std::vector<int32_t> text, int top, std::shared_ptr<TextScore> score);

}  // namespace weft::serve
