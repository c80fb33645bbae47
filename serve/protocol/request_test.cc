#include "serve/protocol/request.h"

#include <gtest/gtest.h>

namespace weft::serve {
namespace {

GenerateRequest accepted(Endpoint endpoint, std::string_view body) {
  auto parsed = parse_generate(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<GenerateRequest>(std::move(parsed));
}

ApiError refused(Endpoint endpoint, std::string_view body) {
  auto parsed = parse_generate(endpoint, body);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    EXPECT_EQ(error->status, 400);
    EXPECT_FALSE(error->message.empty());
    return *error;
  }
  ADD_FAILURE() << body << ": accepted";
  return {};
}

TEST(Request, DefaultsAreTheProtocols) {
  const GenerateRequest completion = accepted(Endpoint::completions, R"({"prompt": "a"})");
  EXPECT_EQ(std::get<std::string>(completion.prompts.at(0)), "a");
  EXPECT_EQ(completion.max_tokens, 16);
  EXPECT_EQ(completion.sampling.temperature, 1);
  EXPECT_FALSE(completion.seed.has_value());
  EXPECT_FALSE(completion.logprobs);
  const GenerateRequest chat =
      accepted(Endpoint::chat, R"({"messages": [{"role": "user", "content": "a"}]})");
  EXPECT_FALSE(chat.max_tokens.has_value());
  EXPECT_TRUE(chat.add_generation_prompt);
}

TEST(Request, NullIsAbsent) {
  const GenerateRequest chat = accepted(Endpoint::chat, R"({
      "messages": [{"role": "user", "content": "a", "name": null}], "model": null, "n": null,
      "temperature": null, "top_p": null, "top_k": null, "min_p": null, "seed": null, "stop": null,
      "stream": null, "stream_options": null, "logit_bias": null, "logprobs": null,
      "top_logprobs": null, "max_tokens": null, "max_completion_tokens": null, "tools": null,
      "tool_choice": null, "response_format": null, "presence_penalty": null, "user": null,
      "frequency_penalty": null, "structured_outputs": null, "guided_json": null})");
  EXPECT_EQ(chat.n, 1);
  EXPECT_TRUE(chat.stop.empty());
  EXPECT_TRUE(chat.structured_outputs.is_null());
  accepted(Endpoint::completions, R"({"prompt": "a", "echo": null, "suffix": null, "best_of": null,
                                      "logprobs": null, "max_tokens": null})");
}

TEST(Request, PromptsOfEveryForm) {
  const auto count = [](const char* body) {
    return accepted(Endpoint::completions, body).prompts.size();
  };
  EXPECT_EQ(count(R"({"prompt": ["a", "b"]})"), 2U);
  EXPECT_EQ(count(R"({"prompt": [1, 2, 3]})"), 1U);
  EXPECT_EQ(count(R"({"prompt": [[1], [2, 3]]})"), 2U);
  for (const char* prompt : {"[]", "[[]]", "1", "[1, \"a\"]", "[-1]", "[1.5]", "[4294967296]",
                             "[18446744073709551615]", "{}", "true", "[[\"a\"]]"}) {
    const std::string body = "{\"prompt\": " + std::string(prompt) + "}";
    EXPECT_EQ(refused(Endpoint::completions, body).param, "prompt") << body;
  }
}

TEST(Request, NamesTheWrongField) {
  for (const auto& [field, value] : {std::pair{"temperature", "-1"},
                                     {"temperature", "\"hot\""},
                                     {"top_p", "2"},
                                     {"n", "0"},
                                     {"n", "1.5"},
                                     {"max_tokens", "-1"},
                                     {"max_tokens", "\"many\""},
                                     {"stop", "[1]"},
                                     {"stop", "{}"},
                                     {"seed", "1.5"},
                                     {"logprobs", "21"},
                                     {"stream", "1"},
                                     {"echo", "\"yes\""},
                                     {"logit_bias", "[]"},
                                     {"logit_bias", "{\"a\": 1}"},
                                     {"logit_bias", "{\"1\": 101}"},
                                     {"presence_penalty", "3"},
                                     {"best_of", "2"},
                                     {"suffix", "\"x\""},
                                     {"model", "7"},
                                     {"stream_options", "{\"include_usage\": true}"},
                                     {"stop_token_ids", "[-3]"},
                                     {"response_format", "{\"type\": \"xml\"}"},
                                     {"allowed_token_ids", "[]"},
                                     {"bad_words", "[1]"},
                                     {"prompt_logprobs", "21"},
                                     {"truncate_prompt_tokens", "0"},
                                     {"request_id", "7"},
                                     {"priority", "1"},
                                     {"use_beam_search", "true"},
                                     {"logprob_token_ids", "[1]"}}) {
    const std::string body =
        "{\"prompt\": \"a\", \"" + std::string(field) + "\": " + std::string(value) + "}";
    EXPECT_EQ(refused(Endpoint::completions, body).param, field) << body;
  }
}

TEST(Request, StructureIsAskedForInManyWays) {
  const auto completion = [](const std::string& field) {
    return accepted(Endpoint::completions, "{\"prompt\": \"a\", " + field + "}");
  };
  for (const char* field : {R"("structured_outputs": {"json": {}, "regex": null, "choice": null})",
                            R"("guided_json": {})", R"("json_schema": {})"}) {
    const GenerateRequest request = completion(field);
    EXPECT_EQ(request.structured_outputs, Json::parse(R"({"json": {}})")) << field;
  }
  for (
      const char* field :
      {R"("response_format": {"type": "json_object", "schema": {"type": "null"}})",
       R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}})"}) {
    const GenerateRequest request = completion(field);
    EXPECT_EQ(request.response_format["type"], "json_schema") << field;
    EXPECT_EQ(request.response_format["json_schema"]["schema"]["type"], "null") << field;
  }
}

TEST(Request, WhatTheTemplateIsTold) {
  const std::string messages = R"({"messages": [{"role": "user", "content": "a"}], )";
  const GenerateRequest chat = accepted(
      Endpoint::chat, messages + R"("reasoning_effort": "low", "documents": [{"text": "b"}]})");
  EXPECT_EQ(chat.chat_template_kwargs["reasoning_effort"], "low");
  EXPECT_EQ(chat.documents[0]["text"], "b");
  EXPECT_EQ(accepted(Endpoint::responses, R"({"input": "a", "reasoning": {"effort": "low"}})")
                .chat_template_kwargs["reasoning_effort"],
            "low");
  for (const char* field : {R"("reasoning_effort": 5})", R"("documents": {}})"}) {
    refused(Endpoint::chat, messages + field);
  }
  EXPECT_EQ(refused(Endpoint::responses, R"({"input": "a", "reasoning": {"effort": 5}})").param,
            "reasoning");
}

TEST(Request, MessagesPartsBecomeText) {
  const GenerateRequest chat = accepted(Endpoint::chat, R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": []},
      {"role": "assistant", "content": null, "refusal": "no"}]})");
  EXPECT_EQ(chat.messages[0]["content"], "ab");
  EXPECT_EQ(chat.messages[0]["role"], "system");
  EXPECT_EQ(chat.messages[1]["content"], "");
  EXPECT_EQ(chat.messages[2]["content"], "");
  for (const char* messages :
       {"[]", "{}", "[1]", "[{}]", "[{\"role\": 1, \"content\": \"\"}]", "[{\"role\": \"user\"}]",
        "[{\"role\": \"user\", \"content\": 1}]",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]"}) {
    EXPECT_EQ(refused(Endpoint::chat, "{\"messages\": " + std::string(messages) + "}").param,
              "messages");
  }
}

TEST(Request, ResponsesAreChats) {
  const GenerateRequest request = accepted(Endpoint::responses, R"({"input": "a",
      "instructions": "be brief", "max_output_tokens": 5,
      "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}}})");
  EXPECT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.max_tokens, 5);
  EXPECT_EQ(request.response_format["json_schema"]["schema"]["type"], "object");
  EXPECT_EQ(refused(Endpoint::responses, R"({"input": "a", "previous_response_id": "x"})").param,
            "previous_response_id");
}

TEST(Request, ThoughtsOfEarlierResponsesAreTheNextAnswers) {
  const GenerateRequest request = accepted(Endpoint::responses, R"({"input": [
      {"role": "user", "content": "a"},
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}, 5]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
      {"type": "reasoning", "content": 5}, {"role": "user", "content": "c"}]})");
  ASSERT_EQ(request.messages.size(), 3U);
  EXPECT_EQ(request.messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(request.messages[1]["content"], "b");
  EXPECT_FALSE(request.messages[2].contains("reasoning_content"));
  EXPECT_EQ(refused(Endpoint::responses, R"({"input": [{"type": "reasoning"}]})").param, "input");
}

TEST(Request, WhatIsNoObjectIsRefused) {
  for (const char* body : {"", "{", "[]", "1", "\"a\"", "null", "{\"prompt\": \"\xff\"}", "nul",
                           "{\"prompt\": 1e999}"}) {
    refused(Endpoint::completions, body);
  }
  refused(Endpoint::completions, std::string(1000, '['));
  std::string wide = "{\"prompt\": \"a\"";
  for (int i = 0; i < 100000; ++i) {
    wide += ", \"" + std::to_string(i) + "\": 0";
  }
  refused(Endpoint::completions, wide + "}");
}

}  // namespace
}  // namespace weft::serve
