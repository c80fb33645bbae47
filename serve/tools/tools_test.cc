#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "serve/grammar/matcher.h"
#include "serve/tools/answer_parser.h"

namespace weft::serve {
namespace {

using Json = nlohmann::ordered_json;

/// What came of an answer: "[thought]text|id name(arguments)|...".
struct Outcome {
  std::string content, reasoning;
  std::vector<ToolDelta> calls;

  void add(const AnswerDelta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const ToolDelta& call : delta.calls) {
      if (call.index == static_cast<int>(calls.size())) {
        EXPECT_FALSE(call.name.empty());
        EXPECT_FALSE(call.id.empty());
        calls.push_back({call.index, call.id, call.name, ""});
      } else {
        EXPECT_EQ(call.index + 1, static_cast<int>(calls.size()));
        EXPECT_EQ(call.name + call.id, "");
      }
      if (!calls.empty()) {
        calls.back().arguments += call.arguments;
      }
    }
  }
  std::string shown() const {
    std::string out = (reasoning.empty() ? "" : "[" + reasoning + "]") + content;
    for (const ToolDelta& call : calls) {
      out += fmt::format("|{} {}({})", call.id, call.name, call.arguments);
    }
    return out;
  }
};

/// `cut`: the sizes of the pieces, in turn; 0 for all that is left.
Outcome parsed(const AnswerFormat& format, std::string_view answer, const std::vector<size_t>& cut,
               bool several = true, std::string_view begun = "") {
  int ids = 0;
  AnswerParser parser(format, begun, several, [&ids] { return fmt::format("id{}", ids++); });
  Outcome out;
  size_t piece = 0;
  while (!answer.empty()) {
    const size_t size = cut[piece++ % cut.size()];
    const std::string_view next = answer.substr(0, size == 0 ? answer.size() : size);
    answer.remove_prefix(next.size());
    out.add(parser.push(next));
  }
  out.add(parser.finish());
  EXPECT_EQ(parser.calls(), static_cast<int>(out.calls.size()));
  return out;
}

constexpr AnswerFormat kThink{ToolFormat::none, ReasoningFormat::think};
constexpr AnswerFormat kInThought{ToolFormat::none, ReasoningFormat::think, true};
constexpr AnswerFormat kHarmony{ToolFormat::harmony, ReasoningFormat::harmony};

struct Case {
  AnswerFormat format;
  const char* answer;
  const char* expected;
};

const Case kCases[] = {
    {{ToolFormat::hermes},
     "Just text, 1 < 2 <tool> </tool_call>.\n",
     "Just text, 1 < 2 <tool> </tool_call>.\n"},
    {{ToolFormat::hermes},
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\\\"{\"], \"b\": "
     "{}}}\n</tool_call>",
     "|id0 f({\"a\": [1, \"}\\\"{\"], \"b\": {}})"},
    {{ToolFormat::hermes},
     "I look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
     "{}}\n</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{\"x\":1}}</tool_call>\n",
     "I look.|id0 f({})|id1 g({\"x\":1})"},
    {{ToolFormat::hermes},
     "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call> done",
     "done|id0 f({\"a\": 1})"},
    {{ToolFormat::hermes},
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     "|id0 f({\"a\": 1})"},
    {{ToolFormat::hermes}, "<tool_call>{\"name\": \"f\"}</tool_call>", "|id0 f({})"},
    {{ToolFormat::hermes}, "a <tool_call> b", "a<tool_call> b"},
    {{ToolFormat::hermes},
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
     "|id0 f({\"a\": 1)"},
    {{ToolFormat::hermes}, "<tool_call>{\"name\": ", "<tool_call>{\"name\": "},
    {{ToolFormat::hermes}, "x <tool_c", "x <tool_c"},
    {{ToolFormat::llama3},
     "{\"name\": \"f\", \"parameters\": {\"a\": \"é\"}}",
     "|id0 f({\"a\": \"é\"})"},
    {{ToolFormat::llama3},
     " <|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; {\"name\": "
     "\"g\", \"parameters\": {\"b\": null}}",
     "|id0 f({})|id1 g({\"b\": null})"},
    {{ToolFormat::llama3}, "{\"answer\": {\"name\": \"f\"}}", "{\"answer\": {\"name\": \"f\"}}"},
    {{ToolFormat::llama3},
     "Use {\"name\": \"f\", \"parameters\": {}}",
     "Use {\"name\": \"f\", \"parameters\": {}}"},
    {{ToolFormat::llama3},
     "{\"name\": 5, \"parameters\": {}}",
     "{\"name\": 5, \"parameters\": {}}"},
    {{ToolFormat::mistral},
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, {\"name\": "
     "\"g\", \"arguments\": {}}]",
     "|id0 f({\"a\": 1})|id1 g({})"},
    {{ToolFormat::mistral},
     "[TOOL_CALLS] [{\"id\": \"abcdefghi\", \"name\": \"f\", \"arguments\": {\"a\": 1}}]",
     "|abcdefghi f({\"a\": 1})"},
    {{ToolFormat::mistral},
     "Hm.[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": "
     "\"[TOOL_CALLS]\"}}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}",
     "Hm.|id0 f({\"a\": {\"b\": \"[TOOL_CALLS]\"}})|abcdefghi g({})"},
    {{ToolFormat::mistral}, "A list [1, 2] and [TOOL", "A list [1, 2] and [TOOL"},
    {{ToolFormat::none}, "<tool_call>{\"name\": \"f\"}", "<tool_call>{\"name\": \"f\"}"},
    {kThink, "<think>\nWell,  no.\n</think>\n\nYes <think>.", "[Well,  no.]Yes <think>."},
    {kThink, "\n<think></think>Yes", "Yes"},
    {kThink, "Yes</think>.", "Yes</think>."},
    {kThink, " \n", " \n"},
    {kThink, "<thin", "<thin"},
    {kThink, "<think> a </thin\n", "[a </thin]"},
    {kInThought, "\n a\n\n b </think>c", "[a\n\n b]c"},
    {kInThought, "a", "[a]"},
    {{ToolFormat::hermes, ReasoningFormat::think},
     "<think>\nI could <tool_call>.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
     "{}}\n</tool_call>",
     "[I could <tool_call>.]|id0 f({})"},
    {kHarmony,
     "<|channel|>analysis<|message|>2 < 3 <| so.<|end|><|start|>assistant<|channel|>final"
     "<|message|>Yes.\n<|return|>",
     "[2 < 3 <| so.]Yes.\n"},
    {kHarmony,
     "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|"
     ">"
     "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
     "[a\nb]I look.|id0 f({\"a\": 1})"},
    {kHarmony,
     " to=functions.f<|channel|>commentary json<|message|>{\"a\": \"é\"}<|call|><|start|>assistant "
     "to=functions.g<|channel|>commentary<|message|><|call|>",
     "|id0 f({\"a\": \"é\"})|id1 g({})"},
    {kHarmony, "<|channel|>commentary to=functions.f<|message|>{\"a\": ", "|id0 f({\"a\": )"},
    {kHarmony, "<|channel|>analysis to=browser.open<|message|>{}<|call|>", "[{}]"},
    {kHarmony, "<|message|>a<|channel|>final<|message|>b", "a\nb"},
    {kHarmony, "<|channel|>final<|message|>a <|e", "a <|e"},
    {kHarmony, "<|channel|>fin", ""},
    {kHarmony, "Just text.<|return|>", "Just text."},
    {kHarmony, "", ""},
};

TEST(ToolParser, TakesCallsOutOfAnswersHoweverTheyAreCut) {
  std::mt19937 random(1);
  for (const Case& one : kCases) {
    EXPECT_EQ(parsed(one.format, one.answer, {0}).shown(), one.expected);
    EXPECT_EQ(parsed(one.format, one.answer, {1}).shown(), one.expected) << "a byte at a time";
    for (int round = 0; round < 50; ++round) {
      const std::vector<size_t> cut = {1 + random() % 9, 1 + random() % 5, 1 + random() % 30};
      ASSERT_EQ(parsed(one.format, one.answer, cut).shown(), one.expected);
    }
  }
}

TEST(ToolParser, StreamsArgumentsAsTheyCome) {
  ToolParser parser(ToolFormat::hermes, "", true, [] { return "id"; });
  EXPECT_EQ(parser.push("Well").content, "Well");
  EXPECT_EQ(parser.push(" <tool").content, "");
  const AnswerDelta name = parser.push("_call>{\"name\": \"f\", \"argu");
  ASSERT_EQ(name.calls.size(), 1u);
  EXPECT_EQ(name.calls[0].name, "f");
  EXPECT_EQ(parser.push("ments\": {\"a").calls.at(0).arguments, "{\"a");
  EXPECT_EQ(parser.push("\": 1").calls.at(0).arguments, "\": 1");
  EXPECT_EQ(parser.push("}}\n</tool_call>").calls.at(0).arguments, "}");
}

TEST(ToolParser, OneCallIsEnoughWhereSoAsked) {
  EXPECT_EQ(parsed({ToolFormat::hermes}, kCases[2].answer, {0}, false).shown(),
            "I look.|id0 f({})");
  EXPECT_EQ(parsed(kHarmony,
                   " to=functions.f<|channel|>commentary<|message|>{}<|call|><|start|>assistant"
                   "<|channel|>final<|message|>more",
                   {3}, false)
                .shown(),
            "|id0 f({})");
}

TEST(AnswerParser, StreamsThoughtsAsTheyCome) {
  AnswerParser think(kThink, "", true, [] { return "id"; });
  EXPECT_FALSE(think.reasons());
  EXPECT_EQ(think.push("<think>\nSo").reasoning, "So");
  EXPECT_TRUE(think.reasons());
  EXPECT_EQ(think.push(" it").reasoning, " it");
  EXPECT_EQ(think.push(".\n</th").reasoning, ".");
  const AnswerDelta said = think.push("ink>\n\nYes");
  EXPECT_EQ(said.reasoning + "|" + said.content, "|Yes");
  EXPECT_FALSE(think.reasons());
  AnswerParser harmony(kHarmony, "", true, [] { return "id"; });
  EXPECT_EQ(harmony.push("<|channel|>analysis<|message|>So").reasoning, "So");
  EXPECT_TRUE(harmony.reasons());
  EXPECT_EQ(harmony.push(".<|en").reasoning, ".");
  EXPECT_EQ(harmony.push("d|><|start|>assistant<|channel|>final<|message|>Ye").content, "Ye");
  EXPECT_FALSE(harmony.reasons());
  EXPECT_EQ(harmony.push("s").content, "s");
}

TEST(AnswerParser, KnowsThoughtsThatPromptsBegin) {
  EXPECT_TRUE(ends_in_thought("<|Assistant|><think>\n"));
  EXPECT_TRUE(ends_in_thought("<think>a</think>b<think>"));
  EXPECT_FALSE(ends_in_thought("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_thought("<think>\nI begin"));
  EXPECT_FALSE(ends_in_thought("assistant"));
}

const Json kTools = Json::parse(R"([
  {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"], "additionalProperties": false}}},
  {"type": "function", "function": {"name": "get_time"}},
  {"type": "function", "function": {"name": "odd", "parameters": {"type": "object", "not": {}}}}])");

ToolChoice choice(const char* json) {
  const auto read = read_tool_choice(kTools, Json::parse(json));
  EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
  return read.ok() ? read.value() : ToolChoice{};
}

TEST(Tools, ChoicesAreRead) {
  using Kind = ToolChoice::Kind;
  EXPECT_EQ(choice("null").kind, Kind::automatic);
  EXPECT_EQ(choice("\"auto\"").kind, Kind::automatic);
  EXPECT_EQ(choice("\"none\"").kind, Kind::none);
  EXPECT_EQ(choice("\"required\"").kind, Kind::required);
  EXPECT_EQ(choice(R"({"type": "function", "function": {"name": "get_time"}})").name, "get_time");
  EXPECT_EQ(read_tool_choice(nullptr, nullptr).value().kind, Kind::none);
  const auto refused = [](const Json& tools, const char* choice) {
    const auto read = read_tool_choice(tools, Json::parse(choice));
    return read.ok() ? "" : read.error().message;
  };
  EXPECT_NE(refused(kTools, "\"maybe\"").find("maybe"), std::string::npos);
  EXPECT_NE(refused(kTools, R"({"function": {"name": "x"}})").find("'x'"), std::string::npos);
  EXPECT_NE(refused(nullptr, "\"required\"").find("no tools"), std::string::npos);
  EXPECT_NE(refused(Json::parse(R"([{"type": "function"}])"), "null").find("no tool"),
            std::string::npos);
  EXPECT_NE(refused(Json::array({kTools[0], kTools[0]}), "null").find("get_weather"),
            std::string::npos);
  EXPECT_NE(refused(Json(5), "null"), "");
}

TEST(Tools, FormatsAreKnownByTheirTemplates) {
  const auto read = [](const char* name) {
    std::ifstream file(std::filesystem::path(WEFT_SOURCE_DIR) / "tests/templates" /
                       (std::string(name) + ".jinja"));
    std::stringstream text;
    text << file.rdbuf();
    return AnswerFormat{tool_format(text.str()), reasoning_format(text.str())};
  };
  for (const char* name : {"llama-3.1", "llama-3.2"}) {
    EXPECT_EQ(read(name).tools, ToolFormat::llama3) << name;
  }
  for (const char* name : {"qwen2.5", "qwen3", "hermes-2-pro", "qwq"}) {
    EXPECT_EQ(read(name).tools, ToolFormat::hermes) << name;
  }
  EXPECT_EQ(read("mistral-nemo").tools, ToolFormat::mistral);
  EXPECT_EQ(read("gpt-oss").tools, ToolFormat::harmony);
  EXPECT_EQ(read("gpt-oss").reasoning, ReasoningFormat::harmony);
  for (const char* name : {"chatml", "llama-3", "gemma-2", "phi-4", "glm-4.5"}) {
    EXPECT_EQ(read(name).tools, ToolFormat::none) << name;
  }
  for (const char* name : {"qwen3", "qwq", "deepseek-r1", "deepseek-v3.1", "smollm3", "glm-4.5"}) {
    EXPECT_EQ(read(name).reasoning, ReasoningFormat::think) << name;
  }
  for (const char* name : {"chatml", "llama-3.1", "gemma-3", "qwen2.5", "mistral-nemo"}) {
    EXPECT_EQ(read(name).reasoning, ReasoningFormat::none) << name;
  }
}

// Answers drawn at random from what is forced are calls of the tools, with arguments as their
// schemas say.
TEST(Tools, ForcedAnswersAreCalls) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back(1, static_cast<char>(byte));
  }
  tokens.emplace_back();
  const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(tokens, std::vector<int32_t>{256});
  std::mt19937 random(2);
  for (const ToolFormat format :
       {ToolFormat::llama3, ToolFormat::hermes, ToolFormat::mistral, ToolFormat::harmony}) {
    for (const char* which :
         {"\"required\"", R"({"type": "function", "function": {"name": "get_weather"}})"}) {
      const ToolChoice wanted = choice(which);
      const auto forced = force_tools(format, kTools, wanted, true);
      ASSERT_TRUE(forced.ok()) << forced.error().message;
      const auto grammar = grammar::Grammar::make(forced.value().rules, vocabulary);
      ASSERT_TRUE(grammar.ok());
      size_t most = 0;
      for (int round = 0; round < 60; ++round) {
        grammar::Matcher matcher(grammar.value());
        std::string answer;
        while (answer.size() < 3000 && !(matcher.may_end() && random() % 2 == 0)) {
          const auto mask = matcher.mask();
          std::vector<int32_t> allowed;
          for (int32_t id = 0; id < 256; ++id) {
            for (int weight = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0
                                  ? (id == '"' || id == '}' ? 40 : 1)
                                  : 0;
                 weight > 0; --weight) {
              allowed.push_back(id);
            }
          }
          if (allowed.empty()) {
            break;
          }
          const int32_t id = allowed[random() % allowed.size()];
          ASSERT_TRUE(matcher.accept(id));
          answer += static_cast<char>(id);
        }
        if (!matcher.may_end()) {
          continue;
        }
        const Outcome out = parsed({format}, answer, {3, 1, 8}, true, forced.value().begun);
        EXPECT_EQ(out.content, "") << answer;
        ASSERT_GE(out.calls.size(), 1u) << answer;
        most = std::max(most, out.calls.size());
        for (const ToolDelta& call : out.calls) {
          const Json arguments = Json::parse(call.arguments, nullptr, false);
          ASSERT_TRUE(arguments.is_object()) << answer;
          if (call.name == "get_weather") {
            ASSERT_TRUE(arguments.at("city").is_string() && arguments.at("days").get<int>() >= 1 &&
                        arguments.size() == 2)
                << answer;
          } else {
            ASSERT_TRUE(wanted.name.empty() && (call.name == "get_time" || call.name == "odd"))
                << answer;
          }
        }
      }
      // A message of harmony is one call.
      EXPECT_EQ(most > 1, wanted.name.empty() && format != ToolFormat::harmony);
    }
  }
  EXPECT_FALSE(force_tools(ToolFormat::none, kTools, choice("\"required\""), true).ok());
  Json strict = kTools;
  strict[2]["function"]["strict"] = true;
  const auto refused = force_tools(ToolFormat::hermes, strict, choice("\"required\""), true);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("'odd'"), std::string::npos);
  EXPECT_NE(refused.error().message.find("'not'"), std::string::npos);
}

TEST(Tools, ThoughtsHaveTheNamesThatTemplatesKnow) {
  const Json out = as_templates_expect(Json::parse(
      R"([{"role": "assistant", "content": "x", "reasoning": "a"}, {"role": "assistant", "reasoning_content": "b", "thinking": "c"}, {"role": "user", "reasoning": 5}])"));
  EXPECT_EQ(out[0]["reasoning_content"], "a");
  EXPECT_EQ(out[0]["thinking"], "a");
  EXPECT_EQ(out[1]["thinking"], "c");
  EXPECT_FALSE(out[2].contains("thinking"));
}

TEST(Tools, ArgumentsOfEarlierCallsBecomeObjects) {
  const Json messages =
      Json::parse(R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
    {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": 2}"}}, {"function": {"name": "f", "arguments": "no"}}, {"function": {"arguments": {"c": 3}}}, 5]}, 7])");
  const Json out = as_templates_expect(messages);
  EXPECT_EQ(out[1]["tool_calls"][0]["function"]["arguments"].dump(), R"({"b":1,"a":2})");
  EXPECT_EQ(out[1]["tool_calls"][1], messages[1]["tool_calls"][1]);
  EXPECT_EQ(out[1]["tool_calls"][2], messages[1]["tool_calls"][2]);
  EXPECT_EQ(out[0], messages[0]);
}

}  // namespace
}  // namespace weft::serve
