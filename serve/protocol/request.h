// Requests of OpenAI's protocol, with vLLM's additions: JSON in, fields that are checked out. What
// needs the model (tokens, templates, grammars) comes after (serve/prepare.h).
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/sample/op.h"
#include "serve/protocol/error.h"
#include "serve/tools/format.h"

namespace weft::serve {

using Json = nlohmann::ordered_json;

enum class Endpoint { completions, chat, responses };

/// A prompt as text, or as token ids.
using Prompt = std::variant<std::string, std::vector<int32_t>>;

/// A request to generate; each field is what its namesake in the protocol says, null as absent.
struct GenerateRequest {
  Endpoint endpoint = Endpoint::completions;
  std::string model;            ///< empty: the one that is served
  std::vector<Prompt> prompts;  ///< completions: at least one
  Json messages;                ///< chat, responses: [{role, content, ...}], content a string
  Json tools = nullptr;         ///< null: none, or tool_choice says that none is to be called
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  Json response_format = nullptr;     ///< {"type": "json_schema", ...}
  Json structured_outputs = nullptr;  ///< {"regex": ...}, {"choice": [...]}, {"grammar": ...}
  Json chat_template_kwargs = Json::object();
  Json documents = nullptr;  ///< a list, for the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  std::optional<bool> add_special_tokens;  ///< default: completions yes, chat no
  /// Of a prompt that is longer, the last tokens are taken; -1: as many as the context has room
  /// for.
  std::optional<int64_t> truncate_prompt_tokens;

  int n = 1;
  std::optional<int64_t> max_tokens;  ///< default: completions 16, else what the context has
  int64_t min_tokens = 0;
  SamplingOptions sampling;  ///< temperature 1 unless said otherwise
  std::optional<uint64_t> seed;
  double presence_penalty = 0, frequency_penalty = 0;
  std::map<int32_t, float> logit_bias;
  std::vector<int32_t> allowed_token_ids;
  std::vector<std::string> bad_words;  ///< texts that no tokens may spell
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool reads_reasoning = true;    ///< what is thought is told from what is said (chat, responses)
  bool include_reasoning = true;  ///< and is in the answer

  bool logprobs = false;  ///< of the tokens drawn (and of the prompt's, with echo)
  int top_logprobs = 0;   ///< and of this many of the likeliest beside each
  /// Likeliest tokens whose log-probabilities come with each of the prompt's, as vLLM shows them.
  std::optional<int> prompt_logprobs;
  bool echo = false;
  bool return_token_ids = false;
  std::string request_id;  ///< what the answer's id ends with; empty: a number

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

/// What a parse gives: the request, or what is wrong with it.
template <class T>
using Parsed = std::variant<T, ApiError>;

Parsed<GenerateRequest> parse_generate(Endpoint endpoint, std::string_view body);

/// /tokenize: {"prompt" | "content": text} or {"messages": [...]}.
struct TokenizeRequest {
  std::optional<std::string> text;
  GenerateRequest chat;  ///< without a text
  bool add_special = true;
  bool with_pieces = false;
};
Parsed<TokenizeRequest> parse_tokenize(std::string_view body);

/// /detokenize: {"tokens": [...]}.
Parsed<std::vector<int32_t>> parse_detokenize(std::string_view body);

}  // namespace weft::serve
