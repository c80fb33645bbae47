// What an answer is made of beside its text: calls of tools, how models write them and how they
// are made to, and what a model thinks before it answers.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/grammar/rules.h"

namespace weft::serve {

/// How a model writes that it calls a tool.
enum class ToolFormat {
  none,    ///< it was not taught any way that is known here
  llama3,  ///< {"name": ..., "parameters": {...}} is the whole answer; several are separated by ';'
  hermes,  ///< text <tool_call>{"name": ..., "arguments": {...}}</tool_call> ...: Hermes, Qwen
  mistral,  ///< [TOOL_CALLS][{"name": ..., "arguments": {...}}, ...], or
            ///< [TOOL_CALLS]name[ARGS]{...}
  harmony,  ///< a message of the channels of gpt-oss (serve/tools/harmony.h)
};

/// How a model writes what it thinks.
enum class ReasoningFormat {
  none,     ///< not in a way that is known here
  think,    ///< <think>...</think> at the beginning: DeepSeek-R1, Qwen3, SmolLM3, GLM-4.5
  harmony,  ///< a message of the channel `analysis`
};

/// The format that a chat template writes calls in.
ToolFormat tool_format(std::string_view chat_template);
/// The format that a chat template takes thoughts out of earlier answers in, or asks for.
ReasoningFormat reasoning_format(std::string_view chat_template);

inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";
/// Whether a prompt ends amid a thought, which the answer goes on with.
bool ends_in_thought(std::string_view prompt);

/// The field tool_choice.
struct ToolChoice {
  enum class Kind { none, automatic, required, named } kind = Kind::none;
  std::string name;  ///< of a named one
};

/// Checks the fields tools and tool_choice of a request, either of which may be null. Errors
/// (input): a tool that is none, two of one name, a choice that is none of "none", "auto",
/// "required" and {"type": "function", ...}, or of no tool there is.
Result<ToolChoice> read_tool_choice(const nlohmann::ordered_json& tools,
                                    const nlohmann::ordered_json& choice);

/// What makes a model call tools, for the choices `required` and `named`.
struct ForcedTools {
  std::string begun;  ///< goes behind the prompt (with special tokens read as such): what the calls
                      ///< begin with
  grammar::Rules rules;  ///< of the answer after it
};

/// `several`: whether more than one call may be made. A tool's arguments follow its schema; where
/// that says what is not supported, they are any object, but for tools with "strict": true it is an
/// error (input), as is ToolFormat::none.
Result<ForcedTools> force_tools(ToolFormat format, const nlohmann::ordered_json& tools,
                                const ToolChoice& choice, bool several);

/// Messages as chat templates expect them: arguments of earlier calls as objects, where they are
/// the JSON texts of OpenAI's protocol; thoughts (`reasoning_content`, or `reasoning`) under both
/// names that templates have for them, `reasoning_content` and `thinking`. Others stay as they are.
nlohmann::ordered_json as_templates_expect(nlohmann::ordered_json messages);

}  // namespace weft::serve
