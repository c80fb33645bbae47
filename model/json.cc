#include "model/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace weft {
namespace {

constexpr int kDeepest = 64;
constexpr int kMostKeys = 1000;

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

/// parse_json() into either kind of json.
template <class Json>
Result<Json> parse(std::string_view text, const std::string& file,
                   const typename Json::parser_callback_t& filter) {
  if (const int depth = nesting(text); depth > kDeepest) {
    return input_error(
        fmt::format("{}: JSON nested {} levels deep, at most {} are read", file, depth, kDeepest));
  }
  try {
    return Json::parse(text, filter);
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

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file,
                                  const nlohmann::json::parser_callback_t& filter) {
  return parse<nlohmann::json>(text, file, filter);
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& name) {
  using Json = nlohmann::ordered_json;
  std::vector<int> keys;  // of each object that is open
  bool too_many = false;
  const auto count = [&](int, Json::parse_event_t event, Json&) {
    if (event == Json::parse_event_t::object_start) {
      keys.push_back(0);
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      too_many = too_many || ++keys.back() > kMostKeys;
    }
    return !too_many;  // what is not kept costs nothing
  };
  WEFT_ASSIGN(Json json, parse<Json>(text, name, count));
  if (too_many) {
    return input_error(fmt::format("{}: an object has more than {} keys", name, kMostKeys));
  }
  return json;
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
