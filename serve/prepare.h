// From a request's fields to what the engine takes: prompts as tokens, by the model's tokenizer and
// chat template. Safe to call from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/slots.h"
#include "model/tokenizer.h"
#include "serve/answer.h"
#include "serve/grammar/vocabulary.h"
#include "serve/protocol/request.h"
#include "serve/template/chat_template.h"

namespace weft::serve {

/// What is served.
struct ServedModel {
  std::string name;
  Tokenizer tokenizer;
  Result<ChatTemplate> chat;  ///< an error: the model only completes, and why
  std::shared_ptr<const grammar::Vocabulary> vocabulary;  ///< for structured output
  std::unique_ptr<Slots> slots;
};

/// Errors: 404, another model's name; 400, a prompt that is empty or does not fit, ids that are no
/// tokens, a chat that the template refuses.
Parsed<Work> prepare(const ServedModel& model, Endpoint endpoint, std::string_view body);

/// The engine's request for number `index` of the choices of prompt `prompt`. `seed` is of the
/// first.
Request engine_request(const ServedModel& model, const Work& work, size_t prompt, int index,
                       uint64_t seed);
/// The engine's request that gives a prompt's log-probabilities into `score`.
Request score_request(const Work& work, size_t prompt, std::shared_ptr<TextScore> score);

/// The answers of /tokenize and /detokenize.
Parsed<Json> tokenize(const ServedModel& model, std::string_view body);
Parsed<Json> detokenize(const ServedModel& model, std::string_view body);

}  // namespace weft::serve
