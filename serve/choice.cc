#include "serve/choice.h"

#include <algorithm>

namespace weft::serve {

size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

Choice::Choice(const Tokenizer& tokenizer, const GenerateRequest& request)
    : request_(request),
      decoder_(tokenizer, request.skip_special_tokens),
      filter_(request.stop, request.include_stop_str_in_output) {}

std::string Choice::take(const TokenEvent& event) {
  if (stopped()) {
    return {};
  }
  tokens_.push_back(event.token);
  const std::string piece = decoder_.push(event.token);
  if (request_.logprobs) {
    logprobs_.push_back({event.token, event.logprob, true, characters_, event.top});
  }
  characters_ += characters(piece);
  return filter_.push(piece);
}

std::string Choice::finish(Stop stop) {
  if (stopped()) {
    return {};
  }
  length_ = stop == Stop::length || stop == Stop::context;
  std::string text = filter_.push(decoder_.flush());
  return stopped() ? text : text + filter_.flush();
}

}  // namespace weft::serve
