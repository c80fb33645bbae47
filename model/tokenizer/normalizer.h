// Normalisers: what happens to the text before it is split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "model/tokenizer/json.h"
#include "model/tokenizer/regex.h"

namespace weft::tokenizer {

/// The field "pattern" of Replace and Split: a literal text or a regular expression.
class Pattern {
 public:
  static Result<Pattern> parse(const Field& field);
  Status find_all(std::string_view text, std::vector<Match>& out) const;
  /// The literal text, or nullptr when this is a regular expression.
  const std::string* literal() const { return std::get_if<std::string>(&value_); }

 private:
  explicit Pattern(std::variant<std::string, Regex> value) : value_(std::move(value)) {}
  std::variant<std::string, Regex> value_;
};

/// A list of normalisers, applied in order.
class Normalizer {
 public:
  /// The field "normalizer" of a tokenizer.json; null is the empty list.
  static Result<Normalizer> parse(const Field& field);

  bool empty() const { return steps_.empty(); }
  /// Rewrites `text`, valid UTF-8, in place. Fails when that makes it absurdly longer.
  Status apply(std::string& text) const;

 private:
  enum class Form { nfc, nfd, nfkc, nfkd };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {
    bool left, right;
  };
  struct Lowercase {};
  struct StripAccents {};
  struct ByteLevel {};
  using Step = std::variant<Form, Prepend, Replace, Strip, Lowercase, StripAccents, ByteLevel>;

  static Status parse_into(const Field& field, int depth, std::vector<Step>& steps);
  /// Gives up on a text that gets longer than `most` bytes.
  static Status apply_step(const Step& step, size_t most, std::string& text);
  static void normalize(Form form, std::string& text);
  std::vector<Step> steps_;
};

}  // namespace weft::tokenizer
