// The answer to a request to generate: its choices become a response, whole or as a stream of
// server-sent events, in the shape of the endpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/choice.h"
#include "serve/grammar/matcher.h"
#include "serve/http/server.h"
#include "serve/logits.h"
#include "serve/protocol/error.h"
#include "serve/protocol/request.h"
#include "serve/tools/answer_parser.h"

namespace weft::serve {

/// A request whose prompts are tokens (serve/prepare.h).
struct Work {
  GenerateRequest request;
  std::vector<std::vector<int32_t>> prompts = {};
  std::vector<std::string> prompt_texts = {};      ///< as echo shows them; one for each prompt
  std::shared_ptr<grammar::Grammar> grammar = {};  ///< of structured output; null: none
  std::vector<std::vector<int32_t>> banned = {};   ///< tokens that may not follow each other
  std::optional<Opening> opening = {};             ///< what may come before what that is about
  std::optional<AnswerFormat> format = {};  ///< what the answer is taken apart by; none: it is text
  std::string begun = {};                   ///< what of the answer the prompt ends with
};

/// Used on the server's thread alone.
class Answer {
 public:
  /// `tokenizer` must outlive this. `id`: a number that no other answer has, for the answer's id
  /// where the request does not say that.
  Answer(std::shared_ptr<Exchange> exchange, const Tokenizer& tokenizer, std::string model,
         uint64_t id, Work work);

  /// Choice i is number i % n of prompt i / n.
  size_t choices() const { return choices_.size(); }
  const Work& work() const { return *work_; }
  const Choice& choice(size_t index) const { return choices_[index].choice; }
  const std::string& id() const { return id_; }

  /// The log-probabilities of a prompt, for echo and prompt_logprobs; before its choices begin.
  void score(size_t prompt, TextScore score);
  /// Choices begin: what a stream says first.
  void begin();
  void token(size_t index, const TokenEvent& event);
  void end(size_t index, const EndEvent& event);
  /// Whether a stream has begun and not ended.
  bool begun() const { return begun_ && !complete(); }
  bool complete() const { return ended_ == choices_.size(); }
  /// Ends the answer with an error, in a stream that has begun as its last event.
  void fail(const ApiError& error);

  int64_t prompt_tokens() const;
  int64_t new_tokens() const;
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  struct Part {
    Choice choice;
    std::optional<AnswerParser> parser = {};  // where thoughts or calls of tools are read
    std::vector<ToolDelta> calls = {};        // all of them, where the response is whole
    std::string text = {};                    // all of it, where the response is whole
    std::string reasoning = {};               // likewise
    int64_t reasoning_tokens = 0;             // drawn amid a thought
    std::vector<TokenLogprob> logprobs = {};  // likewise
    size_t echo_characters = 0;               // that come before the choice's own
    std::optional<size_t> streamed = {};      // tokens whose ids a stream has shown
    bool echoed = false, ended = false;
  };

  /// Of /v1/responses: a thought or what is said.
  struct OutputItem {
    bool reasoning;
    std::string text;
  };

  bool streams() const { return work_->request.stream; }
  bool reads_reasoning() const {
    return work_->format && work_->format->reasoning != ReasoningFormat::none;
  }
  void show(size_t index, const std::string& text, bool last);
  std::string echo(size_t index);
  /// Takes a text apart into what is said and what is called; `last`: nothing comes behind it.
  AnswerDelta apart(Part& part, std::string text, bool last) const;
  static const char* finish_reason(const Part& part);
  void finish();

  Json usage() const;
  Json logprobs(const std::vector<TokenLogprob>& tokens) const;
  Json chat_logprobs(const std::vector<TokenLogprob>& tokens) const;
  Json completion_logprobs(const std::vector<TokenLogprob>& tokens) const;
  Json prompt_logprobs(size_t prompt) const;
  Json message(const Part& part) const;
  Json whole() const;
  Json response_object(bool ended) const;  // of /v1/responses
  Json output_item(size_t index, const char* status) const;
  std::string item_id(size_t index) const;

  void send_event(const std::string& json);
  void send_response_event(const char* type, const Json& fields);
  std::string new_ids(size_t index);
  std::string prompt_ids(size_t prompt) const;
  void add_to_item(bool reasoning, const std::string& text);
  void open_item(bool reasoning);
  void close_item(const char* status);
  void send_item_event(const char* type, const Json& fields);
  void stream_chunk(size_t index, const AnswerDelta& delta, const char* finish_reason);
  void finish_responses_stream();

  std::shared_ptr<Exchange> exchange_;
  const Tokenizer& tokenizer_;
  std::string model_, id_;
  int64_t created_;
  std::unique_ptr<const Work> work_;  // choices refer to it
  std::vector<Part> choices_;
  std::vector<std::optional<TextScore>> scores_;  // of prompts
  size_t ended_ = 0;
  bool begun_ = false;
  int64_t cached_tokens_ = 0;
  std::vector<OutputItem> items_;  // of /v1/responses, and
  uint64_t sequence_ = 0;          // of its events
  std::string head_;               // what every chunk of a stream begins with
};

}  // namespace weft::serve
