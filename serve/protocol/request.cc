#include "serve/protocol/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "model/fields.h"

namespace weft::serve {
namespace {

using Reader = BasicFields<Json>;

constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr int64_t kMostChoices = 128;
constexpr int64_t kMostPrompts = 1024;
constexpr int64_t kMostTop = 20;
constexpr size_t kMostStops = 64;
constexpr size_t kMostBadWords = 1024;
constexpr size_t kMostOfId = 128;  // bytes

ApiError wrong(const Reader& fields) {
  return {400, fields.error()->message, fields.wrong_key(), ""};
}

/// The object that a body is, or what is wrong with it.
Parsed<Json> parse_object(std::string_view body) {
  if (body.find('\0') != std::string_view::npos) {  // the parser takes it for the end
    return ApiError{400, "request: the body holds a zero byte, which JSON has not", "", ""};
  }
  Result<Json> json = parse_ordered_json(body, "request");
  if (!json.ok()) {
    return ApiError{400, json.error().message, "", ""};
  }
  if (!json->is_object()) {
    return ApiError{
        400, fmt::format("request: the body is {}; it must be a JSON object", show(*json)), "", ""};
  }
  return *std::move(json);
}

bool is_token(const Json& id) {
  return id.is_number_integer() && id.get<int64_t>() >= 0 &&
         id.get<int64_t>() <= std::numeric_limits<int32_t>::max() &&
         (!id.is_number_unsigned() || id.get<uint64_t>() < uint64_t{1} << 31);
}

/// A list of token ids; empty when absent.
std::vector<int32_t> read_ids(Reader& fields, std::string_view key) {
  const Json* list = fields.find(key);
  if (list == nullptr) {
    return {};
  }
  if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_token)) {
    fields.fail(key, *list, "a list of token ids");
    return {};
  }
  return list->get<std::vector<int32_t>>();
}

/// A text or a list of texts; empty when absent.
std::vector<std::string> read_texts(Reader& fields, std::string_view key, size_t most) {
  const Json* value = fields.find(key);
  if (value == nullptr) {
    return {};
  }
  if (value->is_string()) {
    return {value->get<std::string>()};
  }
  const auto is_text = [](const Json& text) { return text.is_string(); };
  if (!value->is_array() || value->size() > most ||
      !std::all_of(value->begin(), value->end(), is_text)) {
    fields.fail(key, *value, fmt::format("a string or a list of up to {} strings", most));
    return {};
  }
  return value->get<std::vector<std::string>>();
}

/// A text, a list of texts, token ids or a list of lists of them.
std::vector<Prompt> read_prompts(Reader& fields) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) {
    fields.fail_at("prompt", "prompt is missing");
    return {};
  }
  const auto is_ids = [](const Json& list) {
    return list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), is_token);
  };
  if (value->is_string()) {
    return {value->get<std::string>()};
  }
  if (is_ids(*value)) {
    return {value->get<std::vector<int32_t>>()};
  }
  std::vector<Prompt> prompts;
  if (value->is_array() && std::ssize(*value) <= kMostPrompts) {
    for (const Json& each : *value) {
      if (each.is_string()) {
        prompts.emplace_back(each.get<std::string>());
      } else if (is_ids(each)) {
        prompts.emplace_back(each.get<std::vector<int32_t>>());
      } else {
        prompts.clear();
        break;
      }
    }
  }
  if (prompts.empty()) {
    fields.fail(
        "prompt", *value,
        fmt::format("a string, a list of token ids, or a list of 1 to {} of these", kMostPrompts));
  }
  return prompts;
}

std::map<int32_t, float> read_logit_bias(Reader& fields) {
  const Json* value = fields.find("logit_bias");
  std::map<int32_t, float> bias;
  if (value == nullptr) {
    return bias;
  }
  if (!value->is_object()) {
    fields.fail("logit_bias", *value, "an object of numbers from -100 to 100 by token id");
    return bias;
  }
  for (const auto& [key, number] : value->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    const double by = number.is_number() ? number.template get<double>() : NAN;
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        !(by >= -100 && by <= 100)) {
      fields.fail("logit_bias", *value, "an object of numbers from -100 to 100 by token id");
      return {};
    }
    bias[id] = static_cast<float>(by);
  }
  return bias;
}

/// A member that is an object, null when absent.
Json read_object(Reader& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (value != nullptr && !value->is_object()) {
    fields.fail(key, *value, "an object");
  }
  return value == nullptr || !value->is_object() ? Json(nullptr) : *value;
}

/// A message's content as one text: parts of text are put together, other parts refused.
std::optional<std::string> text_of(Reader& fields, std::string_view key, const Json& content) {
  if (content.is_string()) {
    return content.get<std::string>();
  }
  std::string text;
  for (const Json& part : content.is_array() ? content : Json::array({content})) {
    const bool is_text = part.is_object() && part.contains("type") && part["type"].is_string() &&
                         part.contains("text") && part["text"].is_string();
    const std::string type = is_text ? part["type"].get<std::string>() : "";
    if (type != "text" && type != "input_text" && type != "output_text") {
      fields.fail(key, part, "text: a string or a list of {\"type\": \"text\", \"text\": ...}");
      return {};
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

/// Checks the messages and makes each content one text.
Json read_messages(Reader& fields, std::string_view key, const Json& list) {
  Json messages = Json::array();
  if (!list.is_array() || list.empty()) {
    fields.fail(key, list, "a list of messages, {\"role\": ..., \"content\": ...}");
    return messages;
  }
  for (Json message : list) {
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      fields.fail(key, message, "a message: an object with a role, a string");
      return messages;
    }
    if (message["role"] == "developer") {
      message["role"] = "system";  // what templates know it by
    }
    const bool calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if (calls && !message["tool_calls"].is_array()) {
      fields.fail(key, message["tool_calls"], "a list of tool calls");
      return messages;
    }
    if (message.contains("content") && !message["content"].is_null()) {
      const std::optional<std::string> text = text_of(fields, key, message["content"]);
      if (!text) {
        return messages;
      }
      message["content"] = *text;
    } else if (calls || message["role"] == "assistant") {
      message["content"] = "";
    } else {
      fields.fail(key, message, "a message with content");
      return messages;
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void read_tools(Reader& fields, GenerateRequest& request) {
  const auto value = [&](const char* key) {
    const Json* found = fields.find(key);
    return found == nullptr ? Json() : *found;
  };
  const Json tools = value("tools");
  if (const auto read = read_tool_choice(tools, nullptr); !read.ok()) {
    return fields.fail_at("tools", read.error().message);
  }
  const auto choice = read_tool_choice(tools, value("tool_choice"));
  if (!choice.ok()) {
    return fields.fail_at("tool_choice", choice.error().message);
  }
  request.tool_choice = *choice;
  if (choice->kind != ToolChoice::Kind::none) {
    request.tools = tools;
  }
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls", true);
}

/// {"type": "text" | "json_object" | "json_schema", ...}, null for text.
Json checked_format(Reader& fields, std::string_view key, const Json& format) {
  if (format.is_null() || !format.contains("type") || format["type"] == "text") {
    return nullptr;
  }
  if (format["type"] == "json_object" && format.contains("schema")) {  // llama.cpp's way
    return {{"type", "json_schema"}, {"json_schema", format}};
  }
  if (format["type"] != "json_object" && format["type"] != "json_schema") {
    fields.fail(key, format, "of type text, json_object or json_schema");
  } else if (format["type"] == "json_schema" &&
             (!format.contains("json_schema") || !format["json_schema"].is_object() ||
              !format["json_schema"].contains("schema"))) {
    fields.fail(key, format, "with a json_schema that has a schema");
  }
  return format;
}

/// response_format, and vLLM's and llama.cpp's ways to say more.
void read_structure(Reader& fields, GenerateRequest& request) {
  request.response_format =
      checked_format(fields, "response_format", read_object(fields, "response_format"));
  if (const Json options = read_object(fields, "structured_outputs"); options.is_object()) {
    request.structured_outputs = Json::object();
    for (const auto& [key, value] : options.items()) {
      if (!value.is_null()) {
        request.structured_outputs[key] = value;
      }
    }
  }
  for (const auto& [key, name] : {std::pair{"guided_json", "json"},
                                  {"guided_regex", "regex"},
                                  {"guided_choice", "choice"},
                                  {"guided_grammar", "grammar"},
                                  {"grammar", "grammar"},
                                  {"json_schema", "json"}}) {
    if (const Json* value = fields.find(key); value != nullptr) {
      request.structured_outputs[name] = *value;
    }
  }
  if (request.structured_outputs.is_object() &&
      (request.structured_outputs.size() != 1 || !request.response_format.is_null())) {
    fields.fail_at("structured_outputs",
                   "structured_outputs, guided_* and response_format: exactly one may say what the "
                   "output is");
  }
}

void read_sampling(Reader& fields, GenerateRequest& request) {
  SamplingOptions& sampling = request.sampling;
  sampling.temperature = static_cast<float>(fields.number("temperature", 0, 100, 1));
  sampling.top_p = static_cast<float>(fields.number("top_p", 0, 1, 1));
  sampling.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, fields.integer("top_k", -1, std::numeric_limits<int32_t>::max(), 0)));
  sampling.min_p = static_cast<float>(fields.number("min_p", 0, 1, 0));
  sampling.repetition_penalty =
      static_cast<float>(fields.number("repetition_penalty", 0.01, 100, 1));
  request.presence_penalty = fields.number("presence_penalty", -2, 2, 0);
  request.frequency_penalty = fields.number("frequency_penalty", -2, 2, 0);
  if (fields.find("seed") != nullptr) {
    request.seed = static_cast<uint64_t>(fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                                        std::numeric_limits<int64_t>::max(), 0));
  }
  request.logit_bias = read_logit_bias(fields);
  request.allowed_token_ids = read_ids(fields, "allowed_token_ids");
  if (fields.find("allowed_token_ids") != nullptr && request.allowed_token_ids.empty()) {
    fields.fail_at("allowed_token_ids", "allowed_token_ids is empty: no token could be drawn");
  }
  request.bad_words = read_texts(fields, "bad_words", kMostBadWords);
}

/// What would change the answer and is not had is refused, not passed over.
void refuse_unsupported(Reader& fields) {
  if (fields.boolean("use_beam_search", false)) {
    fields.fail_at("use_beam_search", "use_beam_search is not supported: leave it out");
  }
  if (fields.find("logprob_token_ids") != nullptr) {
    fields.fail_at("logprob_token_ids",
                   "logprob_token_ids is not supported: logprobs gives the likeliest tokens");
  }
  constexpr int64_t kAny = std::numeric_limits<int32_t>::max();
  if (fields.integer("priority", -kAny, kAny, 0) != 0) {
    fields.fail_at("priority", "priority is not supported: requests are answered as they come");
  }
}

/// What completions and chat have in common.
void read_common(Reader& fields, GenerateRequest& request) {
  request.model = fields.text("model", "");
  request.n = static_cast<int>(fields.integer("n", 1, kMostChoices, 1));
  read_sampling(fields, request);
  refuse_unsupported(fields);
  request.request_id = fields.text("request_id", "");
  if (request.request_id.size() > kMostOfId) {
    fields.fail_at("request_id", fmt::format("request_id has more than {} bytes", kMostOfId));
  }
  if (fields.find("truncate_prompt_tokens") != nullptr) {
    request.truncate_prompt_tokens = fields.integer("truncate_prompt_tokens", -1, kMostTokens, -1);
    if (request.truncate_prompt_tokens == 0) {
      fields.fail_at("truncate_prompt_tokens",
                     "truncate_prompt_tokens is 0; it must be -1 or more than 0");
    }
  }
  if (fields.find("max_tokens") != nullptr) {
    request.max_tokens = fields.integer("max_tokens", 0, kMostTokens, 0);
  }
  request.min_tokens = fields.integer("min_tokens", 0, kMostTokens, 0);
  request.stop = read_texts(fields, "stop", kMostStops);
  request.stop_token_ids = read_ids(fields, "stop_token_ids");
  request.include_stop_str_in_output = fields.boolean("include_stop_str_in_output", false);
  request.ignore_eos = fields.boolean("ignore_eos", false);
  request.skip_special_tokens = fields.boolean("skip_special_tokens", true);
  request.return_token_ids = fields.boolean("return_token_ids", false);
  if (fields.find("add_special_tokens") != nullptr) {
    request.add_special_tokens = fields.boolean("add_special_tokens", false);
  }
  request.stream = fields.boolean("stream", false);
  if (const Json options = read_object(fields, "stream_options"); options.is_object()) {
    if (!request.stream) {
      fields.fail_at("stream_options", "stream_options is only allowed when stream is true");
    }
    Reader inner(options, "stream_options");
    request.include_usage = inner.boolean("include_usage", false);
    request.continuous_usage = inner.boolean("continuous_usage_stats", false);
    if (inner.error()) {
      fields.fail_at("stream_options", inner.error()->message);
    }
  }
  if (fields.find("prompt_logprobs") != nullptr) {
    request.prompt_logprobs = static_cast<int>(fields.integer("prompt_logprobs", 0, kMostTop, 0));
    if (request.stream) {
      fields.fail_at("prompt_logprobs", "prompt_logprobs is only allowed when stream is false");
    }
  }
  read_structure(fields, request);
}

void read_completions(Reader& fields, GenerateRequest& request) {
  request.prompts = read_prompts(fields);
  request.echo = fields.boolean("echo", false);
  if (fields.find("logprobs") != nullptr) {
    request.logprobs = true;
    request.top_logprobs = static_cast<int>(fields.integer("logprobs", 0, kMostTop, 0));
  }
  if (!fields.text("suffix", "").empty()) {
    fields.fail_at("suffix",
                   "suffix is not supported: put it into the prompt, as the model was "
                   "trained to take it");
  }
  const int64_t best_of = fields.integer("best_of", 1, kMostChoices, request.n);
  if (best_of != request.n) {
    fields.fail_at("best_of", fmt::format("best_of is {}; it must be n, {}", best_of, request.n));
  }
  if (!request.max_tokens) {
    request.max_tokens = 16;
  }
}

/// How long the model shall think, which is the template's to say.
void read_effort(Reader& fields, const char* key, GenerateRequest& request) {
  if (const std::string effort = fields.text(key, ""); !effort.empty()) {
    request.chat_template_kwargs.emplace("reasoning_effort", effort);
  }
}

void read_chat(Reader& fields, GenerateRequest& request) {
  const Json* messages = fields.find("messages");
  if (messages == nullptr) {
    return fields.fail_at("messages", "messages is missing");
  }
  request.messages = read_messages(fields, "messages", *messages);
  read_tools(fields, request);
  request.logprobs = fields.boolean("logprobs", false);
  request.top_logprobs = static_cast<int>(fields.integer("top_logprobs", 0, kMostTop, 0));
  if (request.top_logprobs > 0 && !request.logprobs) {
    fields.fail_at("top_logprobs", "top_logprobs is only allowed when logprobs is true");
  }
  if (fields.find("max_completion_tokens") != nullptr) {
    request.max_tokens = fields.integer("max_completion_tokens", 0, kMostTokens, 0);
  }
  const std::string format = fields.text("reasoning_format", "auto");  // llama.cpp's
  if (format != "auto" && format != "deepseek" && format != "none") {
    fields.fail_at("reasoning_format",
                   fmt::format("reasoning_format is '{}'; it must be \"auto\" or \"deepseek\" "
                               "(reasoning_content has it) or \"none\" (content has all)",
                               format));
  }
  request.reads_reasoning = format != "none";
  request.include_reasoning = fields.boolean("include_reasoning", true);
  request.add_generation_prompt = fields.boolean("add_generation_prompt", true);
  request.continue_final_message = fields.boolean("continue_final_message", false);
  if (request.continue_final_message) {
    if (fields.find("add_generation_prompt") != nullptr && request.add_generation_prompt) {
      fields.fail_at("continue_final_message",
                     "continue_final_message goes with add_generation_prompt false");
    }
    request.add_generation_prompt = false;
  }
  if (const Json kwargs = read_object(fields, "chat_template_kwargs"); kwargs.is_object()) {
    request.chat_template_kwargs = kwargs;
  }
  read_effort(fields, "reasoning_effort", request);
  if (const Json* documents = fields.find("documents"); documents != nullptr) {
    if (!documents->is_array()) {
      fields.fail("documents", *documents, "a list of documents");
    }
    request.documents = *documents;
  }
  if (fields.find("chat_template") != nullptr) {
    fields.fail_at("chat_template", "chat_template is the server's: start it with --chat-template");
  }
}

/// The items of earlier responses as a chat's messages: a thought becomes the next answer's.
Json without_thoughts(const Json& items) {
  if (!items.is_array()) {
    return items;
  }
  Json messages = Json::array();
  std::string thought;
  for (const Json& item : items) {
    if (item.is_object() && item.contains("type") && item["type"] == "reasoning") {
      const Json content = item.contains("content") ? item["content"] : Json();
      for (const Json& part : content.is_array() ? content : Json::array()) {
        if (part.is_object() && part.contains("text") && part["text"].is_string()) {
          thought += part["text"].get<std::string>();
        }
      }
      continue;
    }
    messages.push_back(item);
    Json& message = messages.back();
    if (!thought.empty() && message.is_object() && message.contains("role") &&
        message["role"] == "assistant") {
      message["reasoning_content"] = std::exchange(thought, {});
    }
  }
  return messages;
}

/// /v1/responses in its text form, as the chat that it stands for.
void read_responses(Reader& fields, GenerateRequest& request) {
  const Json* input = fields.find("input");
  if (input == nullptr) {
    return fields.fail_at("input", "input is missing");
  }
  const Json list = input->is_string() ? Json::array({{{"role", "user"}, {"content", *input}}})
                                       : without_thoughts(*input);
  request.messages = Json::array();
  if (const std::string text = fields.text("instructions", ""); !text.empty()) {
    request.messages.push_back({{"role", "system"}, {"content", text}});
  }
  for (Json& message : read_messages(fields, "input", list)) {
    request.messages.push_back(std::move(message));
  }
  if (fields.find("max_output_tokens") != nullptr) {
    request.max_tokens = fields.integer("max_output_tokens", 0, kMostTokens, 0);
  }
  if (const Json reasoning = read_object(fields, "reasoning"); reasoning.is_object()) {
    Reader inner(reasoning, "reasoning");
    read_effort(inner, "effort", request);
    if (inner.error()) {
      fields.fail_at("reasoning", inner.error()->message);
    }
  }
  for (const char* key : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.find(key) != nullptr) {
      fields.fail_at(key, fmt::format("{} is not supported: the server keeps no conversations; "
                                      "send the messages in input",
                                      key));
    }
  }
  if (const Json* tools = fields.find("tools"); tools != nullptr && !tools->empty()) {
    fields.fail_at("tools", "tools are not supported here: use /v1/chat/completions");
  }
  if (const Json text = read_object(fields, "text"); text.contains("format")) {
    Json format = text["format"];
    if (format.is_object() && format.contains("schema")) {  // the schema stands beside the type
      format = {{"type", format.value("type", Json())}, {"json_schema", format}};
    }
    if (format.is_object() || format.is_null()) {
      request.response_format = checked_format(fields, "text", format);
    } else {
      fields.fail("text", text, "{\"format\": {\"type\": ...}}");
    }
  }
}

}  // namespace

Parsed<GenerateRequest> parse_generate(Endpoint endpoint, std::string_view body) {
  const Parsed<Json> parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  Reader fields(std::get<Json>(parsed), "");
  GenerateRequest request;
  request.endpoint = endpoint;
  read_common(fields, request);
  switch (endpoint) {
    case Endpoint::completions:
      read_completions(fields, request);
      break;
    case Endpoint::chat:
      read_chat(fields, request);
      break;
    case Endpoint::responses:
      read_responses(fields, request);
      break;
  }
  if (fields.error()) {
    return wrong(fields);
  }
  return request;
}

Parsed<TokenizeRequest> parse_tokenize(std::string_view body) {
  const Parsed<Json> parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  Reader fields(std::get<Json>(parsed), "");
  TokenizeRequest request;
  request.chat.endpoint = Endpoint::chat;
  // vLLM's names, then llama.cpp's.
  const bool is_content = fields.find("prompt") == nullptr && fields.find("content") != nullptr;
  if (fields.find("messages") != nullptr) {
    read_chat(fields, request.chat);
    request.add_special = fields.boolean("add_special_tokens", false);
  } else {
    request.text = fields.text(is_content ? "content" : "prompt", "");
    if (!is_content && fields.find("prompt") == nullptr) {
      fields.fail_at("prompt", "prompt is missing");
    }
    request.add_special =
        fields.boolean(is_content ? "add_special" : "add_special_tokens", !is_content);
  }
  request.with_pieces =
      fields.boolean("with_pieces", false) || fields.boolean("return_token_strs", false);
  if (fields.error()) {
    return wrong(fields);
  }
  return request;
}

Parsed<std::vector<int32_t>> parse_detokenize(std::string_view body) {
  const Parsed<Json> parsed = parse_object(body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    return *error;
  }
  Reader fields(std::get<Json>(parsed), "");
  std::vector<int32_t> ids = read_ids(fields, "tokens");
  if (fields.find("tokens") == nullptr) {
    fields.fail_at("tokens", "tokens is missing");
  }
  if (fields.error()) {
    return wrong(fields);
  }
  return ids;
}

}  // namespace weft::serve
