// The text of a template as tokens, by Jinja's rules with trim_blocks and lstrip_blocks, which is
// how transformers reads chat templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/template/value.h"

namespace weft::jinja {

struct Token {
  enum class Kind : uint8_t {
    text,         ///< outside of tags; `text` is what comes out
    begin_block,  ///< {%
    end_block,    ///< %}
    begin_print,  ///< {{
    end_print,    ///< }}
    name,
    string,    ///< `text` is its value
    number,    ///< `value` is
    operator_  ///< `text` is the sign
  };
  Kind kind = Kind::text;
  std::string text;
  Value value;
  int line = 1;
};

/// `source` must be valid UTF-8. Throws Failure with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace weft::jinja
