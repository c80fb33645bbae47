// JSON from files we do not trust: bounded nesting, one-sentence errors.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft {

/// Parses JSON text; `file` is for messages. As in Python, the last of equal keys wins.
/// `filter`, if there is one, sees every parsed piece and drops those for which it returns false.
/// Errors (input): not JSON (line and column are named), or nested deeper than 64 levels, which no
/// file of a model needs and which would let a small file take a lot of memory.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& file,
                                  const nlohmann::json::parser_callback_t& filter = nullptr);

/// The same of text that comes over a network: objects keep the order of their keys, and have at
/// most 1,000 of them (a longer one would take time that grows with its square), or the text is an
/// error (input), too.
Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& name);

/// A value as an error sentence shows it: ASCII, cut after 60 characters.
std::string show(const nlohmann::json& value);

/// "a, b, c"
std::string join(const std::vector<std::string>& names);

}  // namespace weft
