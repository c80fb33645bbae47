// One sequence of an answer: tokens in, text that may be shown out.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/slots.h"
#include "engine/stop_filter.h"
#include "model/tokenizer.h"
#include "serve/protocol/request.h"

namespace weft::serve {

/// A token with its log-probability and the likeliest beside it.
struct TokenLogprob {
  int32_t token = 0;
  double logprob = 0;
  bool known = true;  ///< false: the first of a text, which nothing comes before
  size_t offset = 0;  ///< in the choice's text, in characters
  std::vector<std::pair<int32_t, float>> top;
  int64_t rank = 0;  ///< of a text's token: 1 and how many are likelier
};

/// How many characters a valid UTF-8 text has.
size_t characters(std::string_view text);

class Choice {
 public:
  /// The tokenizer and the request must outlive this.
  Choice(const Tokenizer& tokenizer, const GenerateRequest& request);

  /// Takes a token; gives the text that it lets out, of whole characters and of no stop string.
  std::string take(const TokenEvent& event);
  /// The sequence has ended: the text that was held back.
  std::string finish(Stop stop);

  /// Whether a stop string ended the text: what follows is not taken.
  bool stopped() const { return filter_.stopped(); }
  /// Log-probabilities of tokens since the last call; none unless they were asked for.
  std::vector<TokenLogprob> take_logprobs() { return std::exchange(logprobs_, {}); }
  /// "stop" or "length"; after finish().
  const char* finish_reason() const { return length_ ? "length" : "stop"; }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  const GenerateRequest& request_;
  StreamDecoder decoder_;
  StopFilter filter_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprob> logprobs_;
  size_t characters_ = 0;  // of text so far, held back or not
  bool length_ = false;
};

}  // namespace weft::serve
