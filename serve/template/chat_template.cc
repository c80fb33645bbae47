#include "serve/template/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/json.h"
#include "model/mapped_file.h"
#include "model/tokenizer/unicode.h"
#include "serve/template/evaluator.h"
#include "serve/template/syntax.h"

namespace weft::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kLongestTemplate = 1 << 20;
constexpr size_t kLongestConfig = 64 << 20;  // tokenizer_config.json lists added tokens

struct Named {
  std::string name, text;
  jinja::Body body;
};

Result<Named> parse_named(std::string name, std::string_view text, std::string_view file) {
  if (text.size() > kLongestTemplate) {
    return input_error(fmt::format("{}: a chat template of {} bytes, at most {} are read", file,
                                   text.size(), kLongestTemplate));
  }
  if (tokenizer::find_invalid_utf8(text) != std::string_view::npos) {
    return input_error(fmt::format("{}: the chat template is not UTF-8", file));
  }
  try {
    return Named{std::move(name), std::string(text), jinja::parse_template(text)};
  } catch (const jinja::Failure& failure) {
    return input_error(
        fmt::format("{}: the chat template cannot be read: {}", file, failure.message));
  }
}

/// "chat_template": one text, or [{"name": ..., "template": ...}, ...].
Result<std::vector<Named>> parse_all(const json& value, const std::string& file) {
  std::vector<Named> out;
  if (value.is_string()) {
    WEFT_ASSIGN(Named one, parse_named("default", value.get_ref<const std::string&>(), file));
    out.push_back(std::move(one));
    return out;
  }
  const auto text = [](const json& entry, const char* key) {
    return entry.is_object() && entry.contains(key) && entry[key].is_string();
  };
  for (const json& entry : value.is_array() ? value : json::array()) {
    if (!text(entry, "name") || !text(entry, "template")) {
      return input_error(fmt::format(
          "{}: chat_template has the entry {}, which is no name and template", file, show(entry)));
    }
    WEFT_ASSIGN(Named one, parse_named(entry["name"].get<std::string>(),
                                       entry["template"].get_ref<const std::string&>(), file));
    out.push_back(std::move(one));
  }
  if (out.empty()) {
    return input_error(
        fmt::format("{}: chat_template is {}, which is no template", file, show(value)));
  }
  return out;
}

using Tokens = std::vector<std::pair<std::string, std::string>>;

/// bos_token and its like, each a text or an object with a "content".
Tokens special_tokens(const json& config) {
  Tokens out;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) {
      continue;
    }
    const json* value = &*found;
    if (value->is_object() && value->contains("content")) {
      value = &(*value)["content"];
    }
    if (value->is_string()) {
      out.emplace_back(name, value->get<std::string>());
    }
  }
  return out;
}

/// The text that ends the last message: its content, or the last part of it that is text.
Result<std::string> final_text(const ordered_json& messages) {
  const ordered_json* content = nullptr;
  if (messages.is_array() && !messages.empty() && messages.back().is_object() &&
      messages.back().contains("content")) {
    content = &messages.back()["content"];
  }
  if (content != nullptr && content->is_array()) {
    for (auto part = content->rbegin(); part != content->rend(); ++part) {
      if (part->is_object() && part->contains("text") && (*part)["text"].is_string()) {
        content = &(*part)["text"];
        break;
      }
    }
  }
  if (content == nullptr || !content->is_string()) {
    return input_error("continue_final_message: the last message has no text to go on with");
  }
  return content->get<std::string>();
}

/// Cuts a prompt off behind the last message's text, as transformers does.
Result<std::string> cut_behind(std::string prompt, const std::string& text) {
  const std::string_view stripped = jinja::strip(text);
  const size_t at = prompt.rfind(stripped);
  if (at == std::string::npos) {
    return input_error(
        "continue_final_message: the chat template does not show the last message as it is");
  }
  const size_t whole = jinja::strip_left(text).size();
  prompt.resize(at + (prompt.compare(at, whole, text) == 0 ? whole : stripped.size()));
  return prompt;
}

}  // namespace

struct ChatTemplate::Impl {
  std::vector<Named> templates;
  Tokens tokens;
  std::string bos, eos;

  const Named& choose(bool tools) const {
    for (const char* wanted : {"tool_use", "default"}) {
      const auto found = std::find_if(templates.begin(), templates.end(),
                                      [&](const Named& named) { return named.name == wanted; });
      if (found != templates.end() && (tools || found->name == "default")) {
        return *found;
      }
    }
    return templates.front();
  }

  void set_tokens(Tokens from) {
    tokens = std::move(from);
    for (const auto& [name, text] : tokens) {
      if (name == "bos_token") {
        bos = text;
      } else if (name == "eos_token") {
        eos = text;
      }
    }
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::source(bool tools) const { return impl_->choose(tools).text; }
const std::string& ChatTemplate::bos_token() const { return impl_->bos; }
const std::string& ChatTemplate::eos_token() const { return impl_->eos; }

Result<ChatTemplate> ChatTemplate::parse(std::string_view text, std::string_view name,
                                         Tokens special_tokens) {
  auto impl = std::make_unique<Impl>();
  WEFT_ASSIGN(Named one, parse_named("default", text, name));
  impl->templates.push_back(std::move(one));
  impl->set_tokens(std::move(special_tokens));
  return ChatTemplate(std::move(impl));
}

Result<ChatTemplate> ChatTemplate::from_directory(const std::filesystem::path& directory,
                                                  const std::filesystem::path& instead) {
  auto impl = std::make_unique<Impl>();
  json config = json::object();
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  if (std::filesystem::exists(config_path)) {
    WEFT_ASSIGN(const std::string text, read_text_file(config_path, kLongestConfig));
    WEFT_ASSIGN(config, parse_json(text, config_path.string()));
  }
  impl->set_tokens(special_tokens(config));
  const std::filesystem::path jinja_path =
      instead.empty() ? directory / "chat_template.jinja" : instead;
  const std::filesystem::path json_path = directory / "chat_template.json";
  if (!instead.empty() || std::filesystem::exists(jinja_path)) {
    WEFT_ASSIGN(const std::string text, read_text_file(jinja_path, kLongestTemplate));
    WEFT_ASSIGN(Named one, parse_named("default", text, jinja_path.string()));
    impl->templates.push_back(std::move(one));
    return ChatTemplate(std::move(impl));
  }
  std::string file = config_path.string();
  if (std::filesystem::exists(json_path)) {
    file = json_path.string();
    WEFT_ASSIGN(const std::string text, read_text_file(json_path, 2 * kLongestTemplate));
    WEFT_ASSIGN(config, parse_json(text, file));
  }
  if (!config.is_object() || !config.contains("chat_template")) {
    return input_error(
        fmt::format("{}: no chat_template.jinja, chat_template.json or chat_template in "
                    "tokenizer_config.json: use a model made for chat, or give one",
                    directory.string()));
  }
  WEFT_ASSIGN(impl->templates, parse_all(config["chat_template"], file));
  return ChatTemplate(std::move(impl));
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  const bool tools = input.tools.is_array() && !input.tools.empty();
  std::vector<std::pair<std::string_view, jinja::Value>> variables;
  for (const auto& [name, text] : impl_->tokens) {
    variables.emplace_back(name, jinja::Value::string(text));
  }
  variables.emplace_back("messages", jinja::Value::from_json(input.messages));
  variables.emplace_back("tools", jinja::Value::from_json(input.tools));
  variables.emplace_back("documents", jinja::Value::from_json(input.documents));
  variables.emplace_back("add_generation_prompt",
                         jinja::Value::boolean(input.add_generation_prompt));
  std::vector<std::string> names;
  for (const auto& [name, value] : input.variables.items()) {
    names.push_back(name);
  }
  for (const std::string& name : names) {
    variables.emplace_back(name, jinja::Value::from_json(input.variables[name]));
  }
  std::string prompt;
  try {
    jinja::Evaluator evaluator({}, input.now.value_or(std::time(nullptr)));
    prompt = evaluator.render(impl_->choose(tools).body, std::move(variables));
  } catch (const jinja::Failure& failure) {
    return input_error(fmt::format("the chat template, {}", failure.message));
  }
  if (!input.continue_final_message) {
    return prompt;
  }
  WEFT_ASSIGN(const std::string text, final_text(input.messages));
  return cut_behind(std::move(prompt), text);
}

}  // namespace weft::serve
