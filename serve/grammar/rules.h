// What an answer may look like, as rules over bytes: what every way to say it (GBNF, JSON schema,
// regular expression, choice) is read into.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::grammar {

/// Thrown by what reads one of them, which makes a Result of it.
struct Failure {
  std::string message;
};

/// A part of a rule.
struct Expression {
  enum class Kind : uint8_t {
    text,      ///< the bytes of `text`
    set,       ///< one character of `ranges`
    sequence,  ///< `parts`, one after the other
    choice,    ///< one of `parts`
    repeat,    ///< parts[0], `least` to `most` times
    rule,      ///< what rule `rule` says
  };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::text;
  std::string text;
  std::vector<std::pair<char32_t, char32_t>> ranges;  ///< first and last; no surrogates
  std::vector<Expression> parts;
  int least = 0, most = kUnbounded;
  size_t rule = 0;
};

Expression text(std::string bytes);
Expression set(std::vector<std::pair<char32_t, char32_t>> ranges);
/// Every character but those.
Expression not_in(std::vector<std::pair<char32_t, char32_t>> ranges);
Expression sequence(std::vector<Expression> parts);
Expression choice(std::vector<Expression> parts);
Expression repeat(Expression part, int least, int most = Expression::kUnbounded);
Expression rule(size_t index);

/// The whole answer is rules[root].
struct Rules {
  std::vector<std::string> names;  ///< for messages
  std::vector<Expression> rules;
  size_t root = 0;

  size_t add(std::string name, Expression expression = {});
};

/// Adds the rules of `from`; gives the index that its root then has.
size_t append(Rules& to, Rules from);

/// Repetitions of a counted part are written out: no more than this many times.
inline constexpr int kMostRepeats = 10'000;

// Errors (input) of all: one sentence that names what is wrong, and where.

/// llama.cpp's GBNF: name ::= "text" [a-z] ( ... ) | ... * + ? {m,n}; the answer is the rule
/// `root`.
Result<Rules> read_gbnf(std::string_view text);
/// A regular expression for the whole answer: characters, ., [..], \d \w \s and their opposites, (
/// ) (?: ) |
/// * + ? {m,n}, ^ at the beginning and $ at the end.
Result<Rules> read_regex(std::string_view text);
/// Appends a regular expression to `rules` as a part; `string_of_json`: what it says of a text, as
/// JSON writes that text in quotes (the quotes not included).
Result<Expression> regex_expression(std::string_view text, bool string_of_json);
/// One of these texts.
Result<Rules> read_choice(const nlohmann::ordered_json& choices);
/// JSON that a schema (draft 2020-12, what OpenAI's strict mode takes of it and some more) allows;
/// keys come in the schema's order. A keyword that is not supported is an error that names it.
Result<Rules> read_schema(const nlohmann::ordered_json& schema);
/// Any JSON object.
Rules json_object();

}  // namespace weft::grammar
