#include "serve/tools/format.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "model/json.h"
#include "serve/tools/harmony.h"
#include "serve/tools/markers.h"

namespace weft::serve {
namespace {

using Json = nlohmann::ordered_json;
using grammar::Expression;
using grammar::text;

std::string name_of(const Json& tool) {
  const bool there = tool.is_object() && tool.contains("function") &&
                     tool["function"].is_object() && tool["function"].contains("name") &&
                     tool["function"]["name"].is_string();
  return there ? tool["function"]["name"].get<std::string>() : "";
}

/// The rule of a tool's arguments.
Result<size_t> arguments_of(const Json& function, grammar::Rules& rules) {
  const bool strict = function.contains("strict") && function["strict"] == Json(true);
  if (!function.contains("parameters") || function["parameters"].is_null()) {
    return append(rules, grammar::json_object());
  }
  auto read = grammar::read_schema(function["parameters"]);
  if (!read.ok() && strict) {
    return input_error(fmt::format("the tool '{}': {}", function["name"].get<std::string>(),
                                   read.error().message));
  }
  return append(rules, read.ok() ? std::move(read).value() : grammar::json_object());
}

}  // namespace

ToolFormat tool_format(std::string_view chat_template) {
  const auto says = [&](std::string_view words) {
    return chat_template.find(words) != std::string_view::npos;
  };
  if (says(harmony::kChannel) && says(harmony::kMessage)) {
    return ToolFormat::harmony;
  }
  if (says("[TOOL_CALLS]")) {
    return ToolFormat::mistral;
  }
  if (says("<tool_call>") && !says("<arg_key>") &&
      !says("<function=")) {  // others put no JSON there
    return ToolFormat::hermes;
  }
  if (says("<|python_tag|>") || (says("<|start_header_id|>") && says("\"parameters\": "))) {
    return ToolFormat::llama3;
  }
  return ToolFormat::none;
}

ReasoningFormat reasoning_format(std::string_view chat_template) {
  const auto says = [&](std::string_view words) {
    return chat_template.find(words) != std::string_view::npos;
  };
  return says(harmony::kChannel) && says(harmony::kMessage) ? ReasoningFormat::harmony
         : says(kThinkClose)                                ? ReasoningFormat::think
                                                            : ReasoningFormat::none;
}

bool ends_in_thought(std::string_view prompt) {
  const size_t open = prompt.rfind(kThinkOpen);
  const size_t close = prompt.rfind(kThinkClose);
  return open != std::string_view::npos && (close == std::string_view::npos || close < open) &&
         prompt.find_first_not_of(kBlank, open + kThinkOpen.size()) == std::string_view::npos;
}

Result<ToolChoice> read_tool_choice(const Json& tools, const Json& choice) {
  std::set<std::string> names;
  if (!tools.is_null() && !tools.is_array()) {
    return input_error("tools must be a list");
  }
  for (const Json& tool : tools) {
    const std::string name = name_of(tool);
    if (name.empty()) {
      return input_error(
          fmt::format("tools: {} is no tool: {{\"type\": \"function\", \"function\": {{\"name\": "
                      "...}}}} is needed",
                      show(tool)));
    }
    if (!names.insert(name).second) {
      return input_error(fmt::format("tools: there are two of the name '{}'", name));
    }
  }
  if (choice.is_null() || choice == Json("auto")) {
    return ToolChoice{names.empty() ? ToolChoice::Kind::none : ToolChoice::Kind::automatic, ""};
  }
  if (choice == Json("none")) {
    return ToolChoice{};
  }
  if (choice == Json("required")) {
    if (names.empty()) {
      return input_error("tool_choice is \"required\", but there are no tools");
    }
    return ToolChoice{ToolChoice::Kind::required, ""};
  }
  const std::string name = name_of(choice);
  if (name.empty()) {
    return input_error(
        fmt::format("tool_choice is {}; \"none\", \"auto\", \"required\" or {{\"type\": "
                    "\"function\", \"function\": {{\"name\": ...}}}} is needed",
                    show(choice)));
  }
  if (!names.contains(name)) {
    return input_error(fmt::format("tool_choice names '{}', which is none of the tools", name));
  }
  return ToolChoice{ToolChoice::Kind::named, name};
}

Result<ForcedTools> force_tools(ToolFormat format, const Json& tools, const ToolChoice& choice,
                                bool several) {
  if (format == ToolFormat::none) {
    return input_error(
        "tool_choice: this model's chat template shows no way to call tools that is known");
  }
  ForcedTools out;
  const size_t root = out.rules.add("calls");
  const char* key = format == ToolFormat::llama3 ? "parameters" : "arguments";
  std::vector<Expression> calls;
  std::vector<std::string> names;  // of those that calls are of
  for (const Json& tool : tools) {
    if (choice.kind == ToolChoice::Kind::named && name_of(tool) != choice.name) {
      continue;
    }
    WEFT_ASSIGN(const size_t arguments, arguments_of(tool["function"], out.rules));
    if (format == ToolFormat::harmony) {
      calls.push_back(grammar::rule(arguments));
      names.push_back(name_of(tool));
      continue;
    }
    calls.push_back(grammar::sequence(
        {text(fmt::format("{{\"name\": {}, \"{}\": ", Json(name_of(tool)).dump(), key)),
         grammar::rule(arguments), text("}")}));
  }
  out.rules.root = root;
  if (format == ToolFormat::harmony) {
    // The message's header has special tokens, which rules cannot: where only one may come, it is
    // the prompt's; otherwise what tells them apart is written in letters.
    if (calls.size() == 1) {
      out.begun = harmony::call_header(names[0]);
    } else {
      out.begun = harmony::kCallBegins;
      for (size_t i = 0; i < calls.size(); ++i) {
        calls[i] = grammar::sequence(
            {text(fmt::format("{}{}", names[i], harmony::kCallGoesOn)), std::move(calls[i])});
      }
    }
    out.rules.rules[root] = grammar::choice(std::move(calls));
    return out;
  }
  const Expression call = grammar::rule(out.rules.add("call", grammar::choice(std::move(calls))));
  const bool more = several && choice.kind == ToolChoice::Kind::required;
  const auto repeated = [&](const char* before, const char* after) {
    return grammar::repeat(grammar::sequence({text(before), call, text(after)}), 0,
                           more ? Expression::kUnbounded : 0);
  };
  switch (format) {
    case ToolFormat::llama3:
      out.rules.rules[root] = grammar::sequence({call, repeated("; ", "")});
      break;
    case ToolFormat::hermes:
      out.begun = "<tool_call>\n";
      out.rules.rules[root] = grammar::sequence(
          {call, text("\n</tool_call>"), repeated("\n<tool_call>\n", "\n</tool_call>")});
      break;
    default:
      out.begun = "[TOOL_CALLS]";
      out.rules.rules[root] = grammar::sequence({text("["), call, repeated(", ", ""), text("]")});
  }
  return out;
}

Json as_templates_expect(Json messages) {
  for (Json& message : messages) {
    if (!message.is_object()) {
      continue;
    }
    for (const char* name : {"reasoning_content", "reasoning"}) {
      if (message.contains(name) && message[name].is_string()) {
        const Json thought = message[name];
        for (const char* as : {"reasoning_content", "thinking"}) {
          if (!message.contains(as)) {
            message[as] = thought;
          }
        }
      }
    }
    if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) {
      continue;
    }
    for (Json& call : message["tool_calls"]) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
        continue;
      }
      Json& function = call["function"];
      if (function.contains("arguments") && function["arguments"].is_string()) {
        auto parsed =
            parse_ordered_json(function["arguments"].get_ref<const std::string&>(), "arguments");
        if (parsed.ok() && parsed.value().is_object()) {
          function["arguments"] = std::move(parsed).value();
        }
      }
    }
  }
  return messages;
}

}  // namespace weft::serve
