#include "serve/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <span>
#include <utility>

#include "model/tokenizer/byte_alphabet.h"

namespace weft::serve {
namespace {

constexpr double kLeastLogprob = -9999;  // JSON has no infinity; vLLM's floor

double finite(double logprob) { return std::max(logprob, kLeastLogprob); }

std::string json_text(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c < '\x7f' && c != '"' && c != '\\';
  });
  return plain ? '"' + text + '"' : Json(text).dump();
}

/// The bytes that a token stands for: its text may be part of a character.
std::string bytes_of(const Tokenizer& tokenizer, int32_t id, const std::string& text) {
  if (text.find("\xef\xbf\xbd") == std::string::npos) {
    return text;
  }
  const std::string_view token = tokenizer.token(id);
  int byte = 0;
  if (token.size() == 6 && token.starts_with("<0x") &&
      std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ec == std::errc()) {
    return {static_cast<char>(byte)};
  }
  return tokenizer::bytes_of_characters(token).value_or(text);
}

Json bytes_json(const std::string& bytes) {
  Json list = Json::array();
  for (const char byte : bytes) {
    list.push_back(static_cast<unsigned char>(byte));
  }
  return list;
}

const char* object_of(Endpoint endpoint, bool stream) {
  if (endpoint == Endpoint::chat) {
    return stream ? "chat.completion.chunk" : "chat.completion";
  }
  return endpoint == Endpoint::completions ? "text_completion" : "response";
}

/// What is new of calls: name and id once, arguments in pieces.
Json call_deltas(const std::vector<ToolDelta>& calls) {
  Json list = Json::array();
  for (const ToolDelta& call : calls) {
    Json one = {{"index", call.index}};
    Json function = Json::object();
    if (!call.name.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
      function["name"] = call.name;
    }
    function["arguments"] = call.arguments;
    one["function"] = std::move(function);
    list.push_back(std::move(one));
  }
  return list;
}

/// Of an item of /v1/responses.
Json content_part(bool reasoning, const std::string& text) {
  if (reasoning) {
    return {{"type", "reasoning_text"}, {"text", text}};
  }
  return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}};
}

const char* prefix_of(Endpoint endpoint) {
  return endpoint == Endpoint::chat          ? "chatcmpl"
         : endpoint == Endpoint::completions ? "cmpl"
                                             : "resp";
}

}  // namespace

Answer::Answer(std::shared_ptr<Exchange> exchange, const Tokenizer& tokenizer, std::string model,
               uint64_t id, Work work)
    : exchange_(std::move(exchange)),
      tokenizer_(tokenizer),
      model_(std::move(model)),
      id_(fmt::format(
          "{}-{}", prefix_of(work.request.endpoint),
          work.request.request_id.empty() ? fmt::format("{:016x}", id) : work.request.request_id)),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      work_(std::make_unique<const Work>(std::move(work))),
      scores_(work_->prompts.size()) {
  const GenerateRequest& request = work_->request;
  const size_t count = work_->prompts.size() * static_cast<size_t>(request.n);
  choices_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    choices_.push_back({.choice = Choice(tokenizer, request)});
    if (work_->format) {
      const ToolFormat tools = work_->format->tools;
      choices_.back().parser.emplace(*work_->format, work_->begun, request.parallel_tool_calls,
                                     [tools] { return new_tool_id(tools); });
    }
  }
  head_ =
      fmt::format(R"({{"id":{},"object":"{}","created":{},"model":{},"choices":[)", json_text(id_),
                  object_of(request.endpoint, true), created_, json_text(model_));
}

int64_t Answer::prompt_tokens() const {
  int64_t sum = 0;
  for (const auto& prompt : work_->prompts) {
    sum += std::ssize(prompt);
  }
  return sum;
}

int64_t Answer::new_tokens() const {
  int64_t sum = 0;
  for (const Part& part : choices_) {
    sum += std::ssize(part.choice.tokens());
  }
  return sum;
}

Json Answer::usage() const {
  const int64_t in = prompt_tokens();
  const int64_t out = new_tokens();
  int64_t reasoning = 0;
  for (const Part& part : choices_) {
    reasoning += part.reasoning_tokens;
  }
  if (work_->request.endpoint == Endpoint::responses) {
    return {{"input_tokens", in},
            {"input_tokens_details", {{"cached_tokens", cached_tokens_}}},
            {"output_tokens", out},
            {"output_tokens_details", {{"reasoning_tokens", reasoning}}},
            {"total_tokens", in + out}};
  }
  Json usage = {{"prompt_tokens", in},
                {"completion_tokens", out},
                {"total_tokens", in + out},
                {"prompt_tokens_details", {{"cached_tokens", cached_tokens_}}}};
  if (reads_reasoning()) {
    usage["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
  }
  return usage;
}

Json Answer::chat_logprobs(const std::vector<TokenLogprob>& tokens) const {
  Json content = Json::array();
  const auto entry = [&](int32_t id, double logprob) {
    const std::string text = tokenizer_.decode({&id, 1}, false);
    return Json{{"token", text},
                {"logprob", finite(logprob)},
                {"bytes", bytes_json(bytes_of(tokenizer_, id, text))}};
  };
  for (const TokenLogprob& each : tokens) {
    Json top = Json::array();
    for (const auto& [id, logprob] : each.top) {
      top.push_back(entry(id, logprob));
    }
    Json one = entry(each.token, each.logprob);
    one["top_logprobs"] = std::move(top);
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

Json Answer::completion_logprobs(const std::vector<TokenLogprob>& tokens) const {
  Json texts = Json::array(), values = Json::array(), tops = Json::array(), offsets = Json::array();
  for (const TokenLogprob& each : tokens) {
    const std::string text = tokenizer_.decode({&each.token, 1}, false);
    texts.push_back(text);
    offsets.push_back(each.offset);
    if (!each.known) {
      values.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    values.push_back(finite(each.logprob));
    Json top = Json::object();
    for (const auto& [id, logprob] : each.top) {
      const std::string key = tokenizer_.decode({&id, 1}, false);
      if (!top.contains(key)) {  // the likelier of two that read alike
        top[key] = finite(logprob);
      }
    }
    if (!top.contains(text)) {
      top[text] = finite(each.logprob);
    }
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json Answer::logprobs(const std::vector<TokenLogprob>& tokens) const {
  if (!work_->request.logprobs) {
    return nullptr;
  }
  return work_->request.endpoint == Endpoint::completions ? completion_logprobs(tokens)
                                                          : chat_logprobs(tokens);
}

/// Of each of a prompt's tokens, by id: its own log-probability and those of the likeliest. Of the
/// first, which nothing comes before, null.
Json Answer::prompt_logprobs(size_t prompt) const {
  Json list = Json::array({nullptr});
  for (const TokenLogprob& each : scores_[prompt]->tokens) {
    Json entries = Json::object();
    const auto add = [&](int32_t id, double logprob, int64_t rank) {
      entries.emplace(std::to_string(id),
                      Json{{"logprob", finite(logprob)},
                           {"rank", rank},
                           {"decoded_token", tokenizer_.decode({&id, 1}, false)}});
    };
    add(each.token, each.logprob, each.rank);
    const auto most = static_cast<size_t>(*work_->request.prompt_logprobs);
    for (size_t i = 0; i < std::min(most, each.top.size()); ++i) {
      add(each.top[i].first, each.top[i].second, static_cast<int64_t>(i) + 1);
    }
    list.push_back(std::move(entries));
  }
  return list;
}

void Answer::score(size_t prompt, TextScore score) { scores_[prompt] = std::move(score); }

/// The prompt as the choice's text begins with it; its log-probabilities become the choice's first.
std::string Answer::echo(size_t index) {
  Part& part = choices_[index];
  if (!work_->request.echo || std::exchange(part.echoed, true)) {
    return {};
  }
  const size_t prompt = index / static_cast<size_t>(work_->request.n);
  const std::vector<int32_t>& ids = work_->prompts[prompt];
  if (work_->request.logprobs) {
    StreamDecoder decoder(tokenizer_, work_->request.skip_special_tokens);
    size_t offset = 0;
    std::vector<TokenLogprob> tokens;
    for (size_t i = 0; i < ids.size(); ++i) {
      tokens.push_back(i == 0 ? TokenLogprob{ids[0], 0, false, 0, {}}
                              : scores_[prompt]->tokens[i - 1]);
      tokens.back().offset = offset;
      auto& top = tokens.back().top;
      top.resize(std::min(top.size(), static_cast<size_t>(work_->request.top_logprobs)));
      offset += characters(decoder.push(ids[i]));
    }
    part.logprobs = std::move(tokens);
    part.echo_characters = characters(work_->prompt_texts[prompt]);
  }
  return work_->prompt_texts[prompt];
}

void Answer::send_event(const std::string& json) { exchange_->write("data: " + json + "\n\n"); }

void Answer::send_response_event(const char* type, const Json& fields) {
  Json event = {{"type", type}, {"sequence_number", sequence_++}};
  event.update(fields);
  exchange_->write(fmt::format("event: {}\ndata: {}\n\n", type, event.dump()));
}

void Answer::begin() {
  if (!streams()) {
    return;
  }
  begun_ = true;
  exchange_->begin({200,
                    "text/event-stream; charset=utf-8",
                    "",
                    {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
  const std::string usage = work_->request.include_usage ? R"(,"usage":null)" : "";
  if (work_->request.endpoint == Endpoint::chat) {
    const std::string prompt = work_->request.return_token_ids ? prompt_ids(0) : "";
    std::string all;
    for (size_t i = 0; i < choices_.size(); ++i) {
      all += fmt::format(
          "data: {}{{\"index\":{},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},"
          "\"logprobs\":null,\"finish_reason\":null}}]{}{}}}\n\n",
          head_, i, usage, prompt);
    }
    exchange_->write(all);
  } else if (work_->request.endpoint == Endpoint::responses) {
    send_response_event("response.created", {{"response", response_object(false)}});
    send_response_event("response.in_progress", {{"response", response_object(false)}});
    if (!reads_reasoning()) {
      open_item(false);
    }
  }
}

std::string Answer::item_id(size_t index) const {
  return fmt::format("{}-{}{}", items_[index].reasoning ? "rs" : "msg", id_,
                     index > 1 ? fmt::format("-{}", index) : "");
}

Json Answer::output_item(size_t index, const char* status) const {
  const OutputItem& item = items_[index];
  const bool begun = std::string_view(status) == "in_progress";
  Json out = {{"id", item_id(index)}, {"type", item.reasoning ? "reasoning" : "message"}};
  out["status"] = status;
  if (item.reasoning) {
    out["summary"] = Json::array();
  } else {
    out["role"] = "assistant";
  }
  out["content"] = begun ? Json::array() : Json::array({content_part(item.reasoning, item.text)});
  return out;
}

void Answer::send_item_event(const char* type, const Json& fields) {
  const size_t index = items_.size() - 1;
  Json all = {{"item_id", item_id(index)}, {"output_index", index}, {"content_index", 0}};
  all.update(fields);
  send_response_event(type, all);
}

/// The item that is open ends, and one of the other kind begins.
void Answer::open_item(bool reasoning) {
  close_item("completed");
  items_.push_back({reasoning, ""});
  if (streams()) {
    const size_t index = items_.size() - 1;
    send_response_event("response.output_item.added",
                        {{"output_index", index}, {"item", output_item(index, "in_progress")}});
    send_item_event("response.content_part.added", {{"part", content_part(reasoning, "")}});
  }
}

void Answer::close_item(const char* status) {
  if (items_.empty() || !streams()) {
    return;
  }
  const auto& [reasoning, text] = items_.back();
  const size_t index = items_.size() - 1;
  send_item_event(reasoning ? "response.reasoning_text.done" : "response.output_text.done",
                  {{"text", text}});
  send_item_event("response.content_part.done", {{"part", content_part(reasoning, text)}});
  send_response_event("response.output_item.done",
                      {{"output_index", index}, {"item", output_item(index, status)}});
}

void Answer::add_to_item(bool reasoning, const std::string& text) {
  if (text.empty()) {
    return;
  }
  if (items_.empty() || items_.back().reasoning != reasoning) {
    open_item(reasoning);
  }
  items_.back().text += text;
  if (streams()) {
    send_item_event(reasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
                    {{"delta", text}});
  }
}

/// With return_token_ids what a chunk says of the tokens since the last one.
std::string Answer::new_ids(size_t index) {
  const GenerateRequest& request = work_->request;
  if (!request.return_token_ids) {
    return {};
  }
  Part& part = choices_[index];
  const std::vector<int32_t>& ids = part.choice.tokens();
  const std::optional<size_t> before = std::exchange(part.streamed, ids.size());
  const auto news = std::span(ids).subspan(before.value_or(0));
  std::string text = fmt::format(",\"token_ids\":[{}]", fmt::join(news, ","));
  if (request.endpoint == Endpoint::completions && !before) {
    text += prompt_ids(index / static_cast<size_t>(request.n));
  }
  return text;
}

std::string Answer::prompt_ids(size_t prompt) const {
  return fmt::format(",\"prompt_token_ids\":[{}]", fmt::join(work_->prompts[prompt], ","));
}

void Answer::stream_chunk(size_t index, const AnswerDelta& delta, const char* finish_reason) {
  const std::string& text = delta.content;
  const GenerateRequest& request = work_->request;
  Part& part = choices_[index];
  const std::vector<TokenLogprob> tokens = std::exchange(part.logprobs, {});
  const std::string shown = request.logprobs && !tokens.empty() ? logprobs(tokens).dump() : "null";
  const std::string finish = finish_reason == nullptr ? "null" : json_text(finish_reason);
  std::string content;
  if (request.endpoint == Endpoint::completions) {
    content = fmt::format("\"text\":{}", json_text(text));
  } else if (finish_reason != nullptr) {
    content = "\"delta\":{}";
  } else {
    std::vector<std::string> fields;
    if (!delta.reasoning.empty()) {
      fields.push_back("\"reasoning_content\":" + json_text(delta.reasoning));
    }
    if (!text.empty() || (delta.reasoning.empty() && delta.calls.empty())) {
      fields.push_back("\"content\":" + json_text(text));
    }
    if (!delta.calls.empty()) {
      fields.push_back("\"tool_calls\":" + call_deltas(delta.calls).dump());
    }
    content = fmt::format("\"delta\":{{{}}}", fmt::join(fields, ","));
  }
  std::string usage_text;
  if (request.include_usage) {
    usage_text = request.continuous_usage ? ",\"usage\":" + usage().dump() : R"(,"usage":null)";
  }
  send_event(fmt::format(R"({}{{"index":{},{},"logprobs":{},"finish_reason":{}{}}}]{}}})", head_,
                         index, content, shown, finish, new_ids(index), usage_text));
}

void Answer::show(size_t index, const std::string& text, bool last) {
  Part& part = choices_[index];
  std::string all = echo(index);
  for (TokenLogprob& token : part.choice.take_logprobs()) {
    token.offset += part.echo_characters;
    part.logprobs.push_back(std::move(token));
  }
  all += text;
  AnswerDelta delta = apart(part, std::move(all), last);
  if (work_->request.endpoint == Endpoint::responses) {
    add_to_item(true, delta.reasoning);
    add_to_item(false, delta.content);
    return;
  }
  if (!streams()) {
    part.text += delta.content;
    part.reasoning += delta.reasoning;
    for (ToolDelta& call : delta.calls) {
      if (call.name.empty()) {
        part.calls.back().arguments += call.arguments;
      } else {
        part.calls.push_back(std::move(call));
      }
    }
    return;
  }
  const bool has_content = !delta.content.empty() || !delta.reasoning.empty() ||
                           !delta.calls.empty() || (last && !part.logprobs.empty());
  if (has_content) {
    stream_chunk(index, delta, nullptr);
  }
  if (last) {
    stream_chunk(index, {}, finish_reason(part));
  }
}

AnswerDelta Answer::apart(Part& part, std::string text, bool last) const {
  if (!part.parser) {
    return {.content = std::move(text)};
  }
  AnswerDelta delta = part.parser->push(text);
  if (last) {
    delta.append(part.parser->finish());
  }
  if (!work_->request.include_reasoning) {
    delta.reasoning.clear();
  }
  return delta;
}

const char* Answer::finish_reason(const Part& part) {
  const char* reason = part.choice.finish_reason();
  const bool called = part.parser && part.parser->calls() > 0;
  return called && std::string_view(reason) == "stop" ? "tool_calls" : reason;
}

void Answer::token(size_t index, const TokenEvent& event) {
  Part& part = choices_[index];
  if (part.ended || part.choice.stopped()) {
    return;
  }
  part.reasoning_tokens += part.parser && part.parser->reasons() ? 1 : 0;
  const std::string text = part.choice.take(event);
  if (!text.empty() || !streams()) {
    show(index, text, false);
  }
}

void Answer::end(size_t index, const EndEvent& event) {
  Part& part = choices_[index];
  if (std::exchange(part.ended, true)) {
    return;
  }
  cached_tokens_ += index % static_cast<size_t>(work_->request.n) == 0 ? event.cached_tokens : 0;
  ++ended_;
  const std::string rest = part.choice.finish(event.stop);
  show(index, rest, true);
  if (complete()) {
    finish();
  }
}

Json Answer::message(const Part& part) const {
  Json message = {{"role", "assistant"}};
  if (!part.reasoning.empty()) {
    message["reasoning_content"] = part.reasoning;
  }
  const bool silent = part.text.empty() && (!part.calls.empty() || !part.reasoning.empty());
  message["content"] = silent ? Json(nullptr) : Json(part.text);
  if (part.calls.empty()) {
    return message;
  }
  Json calls = Json::array();
  for (const ToolDelta& call : part.calls) {
    calls.push_back({{"id", call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  message["tool_calls"] = std::move(calls);
  return message;
}

Json Answer::response_object(bool ended) const {
  const bool cut = ended && std::string_view(choices_[0].choice.finish_reason()) == "length";
  const char* status = !ended ? "in_progress" : cut ? "incomplete" : "completed";
  Json output = Json::array();
  for (size_t i = 0; ended && i < items_.size(); ++i) {
    output.push_back(output_item(i, i + 1 == items_.size() ? status : "completed"));
  }
  return {{"id", id_},
          {"object", "response"},
          {"created_at", created_},
          {"status", status},
          {"error", nullptr},
          {"incomplete_details", cut ? Json{{"reason", "max_output_tokens"}} : Json(nullptr)},
          {"instructions", nullptr},
          {"metadata", Json::object()},
          {"model", model_},
          {"output", std::move(output)},
          {"parallel_tool_calls", false},
          {"temperature", work_->request.sampling.temperature},
          {"tool_choice", "none"},
          {"tools", Json::array()},
          {"top_p", work_->request.sampling.top_p},
          {"usage", ended ? usage() : Json(nullptr)}};
}

Json Answer::whole() const {
  const GenerateRequest& request = work_->request;
  if (request.endpoint == Endpoint::responses) {
    return response_object(true);
  }
  Json answer = {{"id", id_},
                 {"object", object_of(request.endpoint, false)},
                 {"created", created_},
                 {"model", model_}};
  Json list = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Part& part = choices_[i];
    Json one = {{"index", i}};
    if (request.endpoint == Endpoint::chat) {
      one["message"] = message(part);
    } else {
      one["text"] = part.text;
    }
    one["logprobs"] = logprobs(part.logprobs);
    one["finish_reason"] = finish_reason(part);
    if (request.return_token_ids) {
      one["token_ids"] = part.choice.tokens();
    }
    // A chat has one prompt.
    const size_t prompt = i / static_cast<size_t>(request.n);
    Json& of_prompt = request.endpoint == Endpoint::chat ? answer : one;
    if (request.return_token_ids) {
      of_prompt["prompt_token_ids"] = work_->prompts[prompt];
    }
    if (request.prompt_logprobs) {
      of_prompt["prompt_logprobs"] = prompt_logprobs(prompt);
    }
    list.push_back(std::move(one));
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage();
  return answer;
}

void Answer::finish_responses_stream() {
  const Json done = response_object(true);
  const auto status = done["status"].get<std::string>();
  close_item(status.c_str());
  send_response_event(("response." + status).c_str(), {{"response", done}});
}

void Answer::finish() {
  if (work_->request.endpoint == Endpoint::responses && items_.empty()) {
    open_item(false);  // an answer has a message, be it an empty one
  }
  if (!streams()) {
    // A token's text is valid UTF-8 by itself; what a client sent was.
    return exchange_->respond({200, "application/json", whole().dump(), {}});
  }
  if (work_->request.endpoint == Endpoint::responses) {
    finish_responses_stream();
  } else {
    if (work_->request.include_usage) {
      send_event(fmt::format("{}],\"usage\":{}}}", head_, usage().dump()));
    }
    exchange_->write("data: [DONE]\n\n");
  }
  exchange_->end();
}

void Answer::fail(const ApiError& error) {
  for (Part& part : choices_) {
    ended_ += part.ended ? 0 : 1;
    part.ended = true;
  }
  if (!begun_) {
    return exchange_->respond(error_response(error));
  }
  if (work_->request.endpoint == Endpoint::responses) {
    Json fields = Json::parse(error_json(error))["error"];
    fields.erase("type");  // which the event has
    send_response_event("error", fields);
  } else {
    send_event(error_json(error));
    exchange_->write("data: [DONE]\n\n");
  }
  exchange_->end();
}

}  // namespace weft::serve
