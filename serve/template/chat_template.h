// A model's chat template: messages to the text of a prompt, as transformers' apply_chat_template
// gives it.
//
// The template comes with the model and is not trusted: steps, memory, output and nesting of a
// rendering are bounded, and it sees nothing but what is passed in.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::serve {

/// What a prompt is made of, in the shapes of OpenAI's chat requests.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      ///< array of {"type":"function","function":{...}}, or null
  nlohmann::ordered_json documents;  ///< array, or null
  bool add_generation_prompt = true;
  /// The prompt ends with the last message's own text, for the model to go on with. Not together
  /// with add_generation_prompt.
  bool continue_final_message = false;
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();  ///< chat_template_kwargs
  std::optional<std::time_t> now;  ///< what strftime_now tells (local time); none: the clock
};

class ChatTemplate {
 public:
  /// Reads `directory`: chat_template.jinja, else chat_template.json, else "chat_template" of
  /// tokenizer_config.json (a text, or a list of named ones); and the special tokens of
  /// tokenizer_config.json. Errors (input): no template, a file that cannot be read, a template
  /// that cannot be parsed (file and line are named). `instead`: a file whose template takes the
  /// place of the directory's.
  static Result<ChatTemplate> from_directory(const std::filesystem::path& directory,
                                             const std::filesystem::path& instead = {});
  /// The text of a template; `name` stands for its file in messages. `special_tokens` are variables
  /// such as {"bos_token", "<s>"}.
  static Result<ChatTemplate> parse(
      std::string_view text, std::string_view name,
      std::vector<std::pair<std::string, std::string>> special_tokens = {});

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// The prompt; it carries the special tokens itself (encode it without adding any). Where the
  /// model has a template named tool_use, that one serves requests with tools. Safe to call from
  /// several threads. Errors (input): what the template raises, in its own words; what it does with
  /// a value that the value is not made for; a limit that it came to.
  Result<std::string> render(const ChatInput& input) const;

  /// The text of the template that serves requests with or without tools.
  const std::string& source(bool tools) const;

  /// Empty where the model has none.
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace weft::serve
