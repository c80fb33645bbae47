#include "serve/template/chat_template.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

namespace weft::serve {
namespace {

using nlohmann::ordered_json;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::filesystem::path kTemplates = std::filesystem::path(WEFT_SOURCE_DIR) / "tests/templates";

ChatTemplate parsed(std::string_view text) {
  auto out = ChatTemplate::parse(text, "test.jinja",
                                 {{"bos_token", "<s>"},
                                  {"eos_token", "</s>"},
                                  {"unk_token", "<unk>"},
                                  {"pad_token", "<pad>"}});
  EXPECT_TRUE(out.ok()) << (out.ok() ? "" : out.error().message) << "\n" << text;
  return out.ok() ? std::move(out).value() : ChatTemplate::parse("", "test.jinja").value();
}

/// What the template makes of `variables`; a failure is "error: ...".
std::string rendered(std::string_view text,
                     const ordered_json& variables = ordered_json::object()) {
  ChatInput input;
  input.variables = variables;
  const auto out = parsed(text).render(input);
  return out.ok() ? out.value() : "error: " + out.error().message;
}

std::string refused(std::string_view text) {
  const auto out = ChatTemplate::parse(text, "test.jinja");
  EXPECT_FALSE(out.ok()) << text;
  return out.ok() ? "" : out.error().message;
}

ChatInput input_of(const ordered_json& dialogue, const ordered_json& tools) {
  ChatInput input;
  input.messages = dialogue["messages"];
  if (dialogue.contains("tools")) {
    input.tools = tools[dialogue["tools"].get<std::string>()];
  }
  input.documents = dialogue.value("documents", ordered_json());
  input.add_generation_prompt = dialogue.value("add_generation_prompt", true);
  input.continue_final_message = dialogue.value("continue_final_message", false);
  input.variables = dialogue.value("variables", ordered_json::object());
  input.now = 1769428800;  // 2026-01-26 12:00 UTC
  return input;
}

// Every template over every dialogue, byte for byte what Python's jinja2 made
// (tests/templates/make_goldens.py). WEFT_TEMPLATES=DIRECTORY holds other templates against goldens
// made there.
TEST(ChatTemplate, RendersAsPythonDoes) {
  const char* elsewhere = std::getenv("WEFT_TEMPLATES");
  const std::filesystem::path directory = elsewhere != nullptr ? elsewhere : kTemplates;
  const auto dialogues = ordered_json::parse(read(kTemplates / "dialogues.json"));
  const auto tools = ordered_json::parse(read(kTemplates / "tools.json"));
  const auto goldens = ordered_json::parse(read(directory / "goldens.json"))["goldens"];
  EXPECT_GE(goldens.size(), 30u);
  for (const auto& [name, expected] : goldens.items()) {
    const ChatTemplate chat = parsed(read(directory / (name + ".jinja")));
    for (const auto& [dialogue, golden] : expected.items()) {
      const auto out = chat.render(input_of(dialogues[dialogue], tools));
      if (golden.contains("error")) {
        EXPECT_FALSE(out.ok()) << name << ", " << dialogue << ": Python refuses it with "
                               << golden["error"] << ", here it is\n"
                               << (out.ok() ? out.value() : "");
      } else if (!out.ok()) {
        ADD_FAILURE() << name << ", " << dialogue << ": " << out.error().message;
      } else {
        EXPECT_EQ(out.value(), golden["text"].get<std::string>()) << name << ", " << dialogue;
      }
    }
  }
}

// Expressions, filters, white space, errors: templates of a line, each as Python renders or refuses
// it.
TEST(ChatTemplate, SnippetsAreAsInPython) {
  const auto dialogues = ordered_json::parse(read(kTemplates / "dialogues.json"));
  const auto snippets = ordered_json::parse(read(kTemplates / "snippets.json"));
  const auto goldens = ordered_json::parse(read(kTemplates / "goldens.json"))["snippets"];
  ASSERT_EQ(snippets.size(), goldens.size());
  for (size_t i = 0; i < snippets.size(); ++i) {
    const auto snippet = snippets[i].get<std::string>();
    const auto chat =
        ChatTemplate::parse(snippet, "snippet", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    const auto out = chat.ok() ? chat.value().render(input_of(dialogues["system"], {}))
                               : Result<std::string>(chat.error());
    if (goldens[i].contains("text")) {
      ASSERT_TRUE(out.ok()) << snippet << ": " << out.error().message;
      EXPECT_EQ(out.value(), goldens[i]["text"].get<std::string>()) << snippet;
    } else {
      EXPECT_FALSE(out.ok()) << snippet << ": Python refuses it with " << goldens[i]["error"]
                             << ", here it is\n"
                             << (out.ok() ? out.value() : "");
      EXPECT_NE((out.ok() ? "line " : out.error().message).find("line "), std::string::npos)
          << snippet << ": " << out.error().message;
    }
  }
}

/// A template that would take all time or memory is refused, and soon.
TEST(ChatTemplate, BoundsAreKept) {
  const std::string_view bombs[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% "
      "endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x == ns.x }}",
      "{% set ns = namespace(x={}) %}{% for i in range(1000) %}{% set ns.x = {'x': ns.x} %}{% "
      "endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ 'x' * 1000000000000 }}",
      "{{ [1] * 1000000000000 }}",
      "{{ 10 ** 100 }}",
      "{{ '%9999999999s' % 'x' * 1000000 }}",
      "{{ 'x'.center(100000000000) }}",
      "{{ 'xxxxxxxx'.replace('', 'y' * 100000000) }}",
      "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{{ x | upper | length }}{% endfor "
      "%}",
      "{% set x = 'a' * 10000000 %}{% set y = 'a' * 5000000 ~ 'b' %}{{ x in y }}{{ y in x }}{{ "
      "x.rfind(y) }}"
      "{{ x.split(y) | length }}{{ x.rsplit(y) | length }}{{ x.count(y) }}{{ x.replace(y, '') | "
      "length }}"
      "{% for i in range(100000) %}{{ y in x }}{% endfor %}",
      "{% set x = ['a' * 1000000] * 20 %}{% for i in range(100000) %}{{ x == x }}{{ 'b' * 999999 "
      "in x }}{% endfor %}",
      "{{ range(99999) | batch(1, 0) | map('join', ',') | join('x' * 100000) }}",
      "{% for x in [[[[]]]] recursive %}{{ loop([[[[]]]]) }}{% endfor %}",
  };
  for (const std::string_view bomb : bombs) {
    const std::clock_t before = std::clock();  // of the processor: others may be at work, too
    EXPECT_EQ(rendered(bomb).substr(0, 6), "error:") << bomb;
    EXPECT_LT(std::clock() - before, 10 * CLOCKS_PER_SEC) << bomb;
  }
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns.me }}"),
            "[<Namespace>]");
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.f = loop.changed %}"
                     "{% set _ = loop.changed(loop) %}{% endfor %}{{ ns.f(1) }}"),
            "True");
  EXPECT_EQ(rendered("{% set ns = namespace(x='a') %}{% for j in range(3) %}{% for i in "
                     "range(100000) %}{% set ns.x = [ns.x.count] %}{% endfor %}{% endfor %}done"),
            "done");
  EXPECT_EQ(
      rendered("{% macro f() %}{% macro g() %}{% set ns.f = f %}{% endmacro %}{% set ns.f = g "
               "%}{% endmacro %}{% set ns = namespace(f=f) %}{% for i in range(100000) %}{{ "
               "ns.f() }}{% endfor %}done"),
      "done");
  std::string deep;
  for (int i = 0; i < 100000; ++i) {
    deep += "(";
  }
  refused("{{ " + deep);
  refused("{{ 1" + std::string(100000, '-') + "1 }}");
  std::string ifs;
  for (int i = 0; i < 1000; ++i) {
    ifs += "{% if 1 %}";
  }
  refused(ifs);
}

class Directory {
 public:
  Directory()
      : path_(std::filesystem::temp_directory_path() /
              ("weft-template-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name) << text;
  }
  std::string render(bool tools = false) const {
    ChatInput input;
    if (tools) {
      input.tools = ordered_json::array({1});
    }
    const auto chat = ChatTemplate::from_directory(path_);
    return chat.ok() ? chat.value().render(input).value() : "error: " + chat.error().message;
  }

 private:
  std::filesystem::path path_;
};

TEST(ChatTemplate, IsFoundInAModelsDirectory) {
  const Directory directory;
  EXPECT_NE(directory.render().find("no chat_template"), std::string::npos);
  directory.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "chat_template": "one {{ bos_token }}{{ eos_token }}"})");
  EXPECT_EQ(directory.render(), "one <b><e>");
  directory.write(
      "tokenizer_config.json",
      R"({"bos_token": null, "chat_template": [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]})");
  EXPECT_EQ(directory.render(), "two");
  EXPECT_EQ(directory.render(true), "tools");
  directory.write("chat_template.json", R"({"chat_template": "three"})");
  EXPECT_EQ(directory.render(), "three");
  directory.write("chat_template.jinja", "four\n{% if %}");
  const std::string error = directory.render();
  EXPECT_NE(error.find("chat_template.jinja"), std::string::npos) << error;
  EXPECT_NE(error.find("line 2"), std::string::npos) << error;
  directory.write("chat_template.jinja", "\xff");
  EXPECT_NE(directory.render().find("UTF-8"), std::string::npos);
  directory.write("chat_template.jinja", "four\n");
  EXPECT_EQ(directory.render(), "four");
}

TEST(ChatTemplate, AllItsErrorsNameTheLine) {
  const std::string error = rendered("\n\n{% for x in 5 %}{% endfor %}");
  EXPECT_EQ(error, "error: the chat template, line 3: 'int' object is not iterable");
  EXPECT_EQ(rendered("\n{{ raise_exception('no') }}"), "error: the chat template, line 2: no");
}

}  // namespace
}  // namespace weft::serve
