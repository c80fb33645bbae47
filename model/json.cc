#include "model/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

constexpr int kDeepest = 64;

/// Deepest nesting of brackets outside strings; counted before parsing, so that nothing was built.
int nesting(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file,
                                  const nlohmann::json::parser_callback_t& filter) {
  if (const int depth = nesting(text); depth > kDeepest) {
    return input_error(
        fmt::format("{}: JSON nested {} levels deep, at most {} are read", file, depth, kDeepest));
  }
  try {
    return nlohmann::json::parse(text, filter);
  } catch (const nlohmann::json::parse_error& error) {
    // `byte` counts from 1 and is one past the text when it ends too early.
    const size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const std::string_view before = text.substr(0, at);
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
    return input_error(
        fmt::format("{}: not valid JSON at line {}, column {}{}", file, line, at - line_start + 1,
                    at == text.size() ? " (the text ends there: is the file complete?)" : ""));
  } catch (const nlohmann::json::exception&) {  // a number no double can hold
    return input_error(fmt::format("{}: not valid JSON: a number is out of range", file));
  }
}

std::string show(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += text.empty() ? name : ", " + name;
  }
  return text;
}

}  // namespace weft
