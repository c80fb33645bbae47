#include "serve/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weft::serve {
namespace {

/// The ids of a text. Error: it cannot be tokenized.
Parsed<std::vector<int32_t>> encode(const ServedModel& model, std::string_view text, bool special,
                                    const char* param) {
  Result<std::vector<int32_t>> ids = model.tokenizer.encode(text, special);
  if (!ids.ok()) {
    return ApiError{400, ids.error().message, param, ""};
  }
  return *std::move(ids);
}

/// The name under which a client sent what the prompt is made of.
const char* prompt_param(Endpoint endpoint) {
  return endpoint == Endpoint::completions ? "prompt"
         : endpoint == Endpoint::chat      ? "messages"
                                           : "input";
}

/// Tools with a description each, be it an empty one.
Json with_descriptions(Json tools) {
  for (Json& tool : tools) {
    if (!tool["function"].contains("description")) {
      tool["function"]["description"] = "";
    }
  }
  return tools;
}

Parsed<std::string> render(const ServedModel& model, const GenerateRequest& request) {
  if (!model.chat.ok()) {
    return ApiError{
        400,
        fmt::format("{} (use /v1/completions, or start the server with --chat-template)",
                    model.chat.error().message),
        prompt_param(request.endpoint), ""};
  }
  ChatInput input;
  input.messages = as_templates_expect(request.messages);
  input.tools = request.tools;
  input.documents = request.documents;
  input.add_generation_prompt = request.add_generation_prompt;
  input.continue_final_message = request.continue_final_message;
  input.variables = request.chat_template_kwargs;
  Result<std::string> text = model.chat->render(input);
  const auto try_again = [&] {
    if (Result<std::string> again = model.chat->render(input); again.ok()) {
      text = std::move(again);
    }
  };
  if (!text.ok()) {
    input.tools = with_descriptions(request.tools);
    if (input.tools != request.tools) {  // gpt-oss's wants what the protocol does not
      try_again();
    }
  }
  if (!text.ok() && input.messages != request.messages) {
    // A few templates put the arguments into the prompt as the text that they came as.
    input.messages = request.messages;
    try_again();
  }
  if (!text.ok()) {
    return ApiError{400, text.error().message, prompt_param(request.endpoint), ""};
  }
  return *std::move(text);
}

/// The tokens that spell bad_words, at the beginning of a word and within one.
std::optional<ApiError> read_bad_words(const ServedModel& model, Work& work) {
  for (const std::string& word : work.request.bad_words) {
    for (const std::string& text : {word, " " + word}) {
      auto encoded = encode(model, text, false, "bad_words");
      if (const auto* error = std::get_if<ApiError>(&encoded)) {
        return *error;
      }
      auto& ids = std::get<std::vector<int32_t>>(encoded);
      if (word.empty() || ids.empty()) {
        return ApiError{400, "bad_words has an empty text", "bad_words", ""};
      }
      work.banned.push_back(std::move(ids));
    }
  }
  return {};
}

/// The rules of response_format or structured_outputs, of which one is there.
Result<grammar::Rules> rules_of(const GenerateRequest& request) {
  if (const Json& format = request.response_format; !format.is_null()) {
    return format["type"] == "json_object" ? grammar::json_object()
                                           : grammar::read_schema(format["json_schema"]["schema"]);
  }
  const auto only = request.structured_outputs.begin();
  const std::string& kind = only.key();
  const Json& value = only.value();
  if (kind == "json") {
    return value.is_string() ? Result<grammar::Rules>(
                                   input_error("json is a text; it must be a schema, an object"))
                             : grammar::read_schema(value);
  }
  if (kind == "json_object") {
    return grammar::json_object();
  }
  if (kind == "choice") {
    return grammar::read_choice(value);
  }
  if ((kind == "regex" || kind == "grammar") && value.is_string()) {
    const auto text = value.get<std::string>();
    return kind == "regex" ? grammar::read_regex(text) : grammar::read_gbnf(text);
  }
  return input_error(kind + " is not supported: use json, json_object, regex, choice or grammar");
}

/// Makes `work` follow rules, of which `param` is to blame.
std::optional<ApiError> follow(const ServedModel& model, const Result<grammar::Rules>& rules,
                               const char* param, Work& work) {
  if (!rules.ok()) {
    return ApiError{400, rules.error().message, param, ""};
  }
  Result<std::shared_ptr<grammar::Grammar>> made = grammar::Grammar::make(*rules, model.vocabulary);
  if (!made.ok()) {
    return ApiError{400, made.error().message, param, ""};
  }
  work.grammar = *std::move(made);
  return {};
}

std::optional<ApiError> read_structure(const ServedModel& model, Work& work) {
  const GenerateRequest& request = work.request;
  if (request.response_format.is_null() && request.structured_outputs.is_null()) {
    return {};
  }
  return follow(model, rules_of(request),
                request.response_format.is_null() ? "structured_outputs" : "response_format", work);
}

/// What tools ask of the answer: that calls are read, or made.
std::optional<ApiError> read_calls(const ServedModel& model, Work& work) {
  GenerateRequest& request = work.request;
  // What response_format asks for is no call, however it looks.
  if (request.tools.is_null() || !model.chat.ok()) {
    return {};
  }
  using Kind = ToolChoice::Kind;
  const bool demanded = request.tool_choice.kind != Kind::automatic;
  if (!demanded && !request.response_format.is_null()) {
    return {};
  }
  const ToolFormat format = tool_format(model.chat->source(true));
  if (format != ToolFormat::none) {
    work.format = work.format.value_or(AnswerFormat{});
    work.format->tools = format;
  }
  if (!demanded) {
    return {};
  }
  if (work.grammar) {
    return ApiError{400,
                    "tool_choice demands a call of a tool, and response_format or "
                    "structured_outputs another answer: leave one out",
                    "tool_choice", ""};
  }
  Result<ForcedTools> forced =
      force_tools(format, request.tools, request.tool_choice, request.parallel_tool_calls);
  if (!forced.ok()) {
    const bool unknown = format == ToolFormat::none;
    return ApiError{400, forced.error().message, unknown ? "tool_choice" : "tools", ""};
  }
  work.begun = std::move(forced->begun);
  return follow(model, std::move(forced->rules), "tools", work);
}

/// Whether thoughts are read, and in which way.
void read_reasoning(const ServedModel& model, Work& work) {
  const GenerateRequest& request = work.request;
  if (request.endpoint == Endpoint::completions || !request.reads_reasoning || !model.chat.ok()) {
    return;
  }
  const bool with_tools = !request.tools.is_null();
  const ReasoningFormat format = reasoning_format(model.chat->source(with_tools));
  if (format != ReasoningFormat::none) {
    work.format = work.format.value_or(AnswerFormat{});
    work.format->reasoning = format;
  }
}

/// What an answer's markers need: that special tokens among them are read, and where thoughts end.
void read_markers(const ServedModel& model, const std::string& prompt, Work& work) {
  if (!work.format) {
    return;
  }
  AnswerFormat& format = *work.format;
  GenerateRequest& request = work.request;
  const auto ids_of = [&](std::string_view text) {
    auto ids = model.tokenizer.encode(text, false);
    return ids.ok() ? *std::move(ids) : std::vector<int32_t>();
  };
  const auto one_token = [&](std::string_view text) { return ids_of(text).size() == 1; };
  const std::vector<int32_t> close =
      format.reasoning == ReasoningFormat::think ? ids_of(kThinkClose) : std::vector<int32_t>();
  const bool special = format.is_harmony() || format.tools == ToolFormat::llama3 ||
                       format.tools == ToolFormat::mistral ||
                       (close.size() == 1 && model.tokenizer.is_special(close[0]));
  request.skip_special_tokens = request.skip_special_tokens && !special;
  if (format.reasoning == ReasoningFormat::think && ends_in_thought(prompt)) {
    format.in_thought = true;
    if (!work.begun.empty()) {  // a call that is demanded comes at once
      work.begun = fmt::format("\n{}\n\n{}", kThinkClose, work.begun);
    }
  }
  if (!work.grammar || !work.begun.empty()) {
    return;
  }
  if (format.reasoning == ReasoningFormat::harmony && one_token(harmony::kChannel) &&
      one_token(harmony::kMessage)) {
    work.opening = Opening{{}, ids_of(harmony::kFinal)};
  } else if (close.size() == 1) {
    if (format.in_thought) {
      work.opening = Opening{{}, close};
    } else if (const std::vector<int32_t> open = ids_of(kThinkOpen); open.size() == 1) {
      work.opening = Opening{open[0], close};
    }
  }
}

/// Tokens that a prompt may have: one that is drawn needs a position, too.
int64_t room_for_prompt(const ServedModel& model, const GenerateRequest& request) {
  return model.slots->context() - (request.max_tokens == 0 ? 0 : 1);
}

/// Leaves of a prompt the last tokens that truncate_prompt_tokens says; whether there were more.
bool truncate(const ServedModel& model, const GenerateRequest& request, std::vector<int32_t>& ids) {
  if (!request.truncate_prompt_tokens) {
    return false;
  }
  const int64_t asked = *request.truncate_prompt_tokens;
  const int64_t more = std::ssize(ids) - (asked < 0 ? room_for_prompt(model, request) : asked);
  ids.erase(ids.begin(), ids.begin() + std::max<int64_t>(0, more));
  return more > 0;
}

std::optional<ApiError> check(const ServedModel& model, const Work& work) {
  const int64_t context = model.slots->context();
  const int64_t vocabulary = model.slots->config().vocabulary;
  const char* param = prompt_param(work.request.endpoint);
  for (const auto& prompt : work.prompts) {
    if (prompt.empty()) {
      return ApiError{400, "the prompt has no token; it needs at least one", param, ""};
    }
    if (std::ssize(prompt) > room_for_prompt(model, work.request)) {
      return ApiError{
          400,
          fmt::format("the prompt has {} tokens; this model's context is {} tokens, the "
                      "answer's included",
                      prompt.size(), context),
          param, "context_length_exceeded"};
    }
    const auto highest = std::max_element(prompt.begin(), prompt.end());
    if (*highest >= vocabulary) {
      return ApiError{
          400,
          fmt::format("{} is {}; the model's token ids are below {}", param, *highest, vocabulary),
          param, ""};
    }
  }
  const auto outside = [&](int32_t id) { return id >= vocabulary; };
  const auto& allowed = work.request.allowed_token_ids;
  if (std::any_of(allowed.begin(), allowed.end(), outside)) {
    return ApiError{400, fmt::format("allowed_token_ids: the model's are below {}", vocabulary),
                    "allowed_token_ids", ""};
  }
  if (!work.request.logit_bias.empty() && outside(work.request.logit_bias.rbegin()->first)) {
    return ApiError{400, fmt::format("logit_bias: the model's token ids are below {}", vocabulary),
                    "logit_bias", ""};
  }
  return {};
}

std::optional<ApiError> unknown_model(const ServedModel& model, const std::string& name) {
  if (name.empty() || name == model.name) {
    return {};
  }
  return ApiError{404,
                  fmt::format("the model '{}' is not here; this server has {}", name, model.name),
                  "model", "model_not_found"};
}

}  // namespace

Parsed<Work> prepare(const ServedModel& model, Endpoint endpoint, std::string_view body) {
  Parsed<GenerateRequest> parsed = parse_generate(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  Work work{.request = std::get<GenerateRequest>(std::move(parsed))};
  GenerateRequest& request = work.request;
  if (const auto error = unknown_model(model, request.model)) {
    return *error;
  }
  if (const auto error = read_structure(model, work)) {
    return *error;
  }
  if (const auto error = read_calls(model, work)) {
    return *error;
  }
  read_reasoning(model, work);
  if (const auto error = read_bad_words(model, work)) {
    return *error;
  }
  if (endpoint != Endpoint::completions) {
    Parsed<std::string> text = render(model, request);
    if (const auto* error = std::get_if<ApiError>(&text)) {
      return *error;
    }
    std::string& prompt = std::get<std::string>(text);
    read_markers(model, prompt, work);
    request.prompts = {std::move(prompt) + work.begun};
  }
  const bool special = request.add_special_tokens.value_or(endpoint == Endpoint::completions);
  for (Prompt& prompt : request.prompts) {
    auto* given = std::get_if<std::vector<int32_t>>(&prompt);
    if (given == nullptr) {
      auto encoded = encode(model, std::get<std::string>(prompt), special, prompt_param(endpoint));
      if (const auto* error = std::get_if<ApiError>(&encoded)) {
        return *error;
      }
      work.prompts.push_back(std::get<std::vector<int32_t>>(std::move(encoded)));
    } else {
      work.prompts.push_back(std::move(*given));
    }
    std::vector<int32_t>& ids = work.prompts.back();
    const bool cut = truncate(model, request, ids);
    work.prompt_texts.push_back(given == nullptr && !cut
                                    ? std::get<std::string>(std::move(prompt))
                                    : model.tokenizer.decode(ids, request.skip_special_tokens));
  }
  request.prompts.clear();
  if (const auto error = check(model, work)) {
    return *error;
  }
  return work;
}

Request engine_request(const ServedModel& model, const Work& work, size_t prompt, int index,
                       uint64_t seed) {
  const GenerateRequest& request = work.request;
  Request result;
  result.prompt = work.prompts[prompt];
  const int64_t room = model.slots->context() - std::ssize(result.prompt);
  result.max_tokens = std::min(request.max_tokens.value_or(room), room);
  result.sampling = request.sampling;
  result.sampling.seed = seed + static_cast<uint64_t>(index);
  result.stop_ids = request.stop_token_ids;
  result.eos = request.ignore_eos ? Eos::ignore : Eos::ends;
  result.logprobs = request.top_logprobs;
  result.want_logprob = request.logprobs;
  std::vector<int32_t> ends = request.stop_token_ids;
  const std::vector<int32_t>& eos = model.slots->config().eos;
  ends.insert(ends.end(), eos.begin(), eos.end());
  result.adjust = adjust_of(request, std::move(ends), work.banned, work.grammar, work.opening);
  return result;
}

Request score_request(const Work& work, size_t prompt, std::shared_ptr<TextScore> score) {
  const std::vector<int32_t>& ids = work.prompts[prompt];
  Request result;
  result.prompt = {ids.front()};
  result.max_tokens = std::ssize(ids) - 1;
  result.eos = Eos::ignore;
  const int top = std::max(work.request.top_logprobs, work.request.prompt_logprobs.value_or(0));
  result.adjust = forced(ids, top, std::move(score));
  return result;
}

Parsed<Json> tokenize(const ServedModel& model, std::string_view body) {
  Parsed<TokenizeRequest> parsed = parse_tokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const auto& request = std::get<TokenizeRequest>(parsed);
  Parsed<std::string> text =
      request.text ? Parsed<std::string>(*request.text) : render(model, request.chat);
  if (const auto* error = std::get_if<ApiError>(&text)) {
    return *error;
  }
  const auto encoded = encode(model, std::get<std::string>(text), request.add_special, "prompt");
  if (const auto* error = std::get_if<ApiError>(&encoded)) {
    return *error;
  }
  const auto& ids = std::get<std::vector<int32_t>>(encoded);
  Json answer = {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model.slots->context()}};
  if (request.with_pieces) {
    answer["token_strs"] = Json::array();
    for (const int32_t id : ids) {
      answer["token_strs"].push_back(model.tokenizer.decode({&id, 1}, false));
    }
  }
  return answer;
}

Parsed<Json> detokenize(const ServedModel& model, std::string_view body) {
  const auto parsed = parse_detokenize(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  const std::string text = model.tokenizer.decode(std::get<std::vector<int32_t>>(parsed), false);
  return Json{{"prompt", text}, {"content", text}};
}

}  // namespace weft::serve
