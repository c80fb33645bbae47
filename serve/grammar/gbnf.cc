// llama.cpp's GBNF.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "model/tokenizer/unicode.h"
#include "serve/grammar/rules.h"

namespace weft::grammar {
namespace {

constexpr int kDeepestRule = 100;
constexpr size_t kLongestGrammar = 1 << 20;

class GbnfParser {
 public:
  explicit GbnfParser(std::string_view text) : text_(text) {}

  Rules parse() {
    for (space(true); at_ < text_.size(); space(true)) {
      const size_t index = named(name());
      space(false);
      if (!skip("::=")) {
        fail("'::=' expected");
      }
      space(true);
      if (defined_[index]) {
        fail(fmt::format("the rule '{}' is there twice", rules_.names[index]));
      }
      defined_[index] = true;
      rules_.rules[index] = alternatives(0);
      space(false);
      if (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') {
        fail("the end of the rule expected");
      }
    }
    for (size_t i = 0; i < defined_.size(); ++i) {
      if (!defined_[i]) {
        throw Failure{
            fmt::format("grammar: the rule '{}' is used, but it is not there", rules_.names[i])};
      }
    }
    const auto root = indices_.find("root");
    if (root == indices_.end()) {
      throw Failure{"grammar: there is no rule 'root'"};
    }
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    const auto line =
        std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n') + 1;
    throw Failure{fmt::format("grammar, line {}: {}", line, what)};
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool skip(std::string_view what) {
    const bool there = text_.substr(at_).starts_with(what);
    at_ += there ? what.size() : 0;
    return there;
  }

  void space(bool lines) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  static bool in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }

  std::string name() {
    const size_t start = at_;
    while (in_name(peek())) {
      ++at_;
    }
    if (at_ == start) {
      fail("the name of a rule expected");
    }
    return std::string(text_.substr(start, at_ - start));
  }

  size_t named(const std::string& name) {
    const auto [there, fresh] = indices_.try_emplace(name, rules_.rules.size());
    if (fresh) {
      rules_.add(name);
      defined_.push_back(false);
    }
    return there->second;
  }

  Expression alternatives(int depth) {
    if (depth > kDeepestRule) {
      fail(fmt::format("brackets more than {} deep", kDeepestRule));
    }
    std::vector<Expression> parts;
    parts.push_back(items(depth));
    while (space_then('|', depth > 0)) {
      ++at_;
      space(true);
      parts.push_back(items(depth));
    }
    return parts.size() == 1 ? std::move(parts[0]) : choice(std::move(parts));
  }

  /// Whether `c` comes after white space, which is taken. A rule's '|' may stand on the next line.
  bool space_then(char c, bool lines) {
    const size_t before = at_;
    space(true);
    if (peek() == c) {
      return true;
    }
    if (!lines) {
      at_ = before;
      space(false);
    }
    return false;
  }

  Expression items(int depth) {
    std::vector<Expression> parts;
    for (;;) {
      space(depth > 0);
      const std::optional<Expression> one = item(depth);
      if (!one) {
        return parts.size() == 1 ? std::move(parts[0]) : sequence(std::move(parts));
      }
      parts.push_back(repeated(*one));
    }
  }

  std::optional<Expression> item(int depth) {
    const char c = peek();
    if (c == '"') {
      ++at_;
      std::string bytes;
      while (peek() != '"') {
        const char32_t character = this->character();
        tokenizer::append_utf8(bytes, character);
      }
      ++at_;
      return text(std::move(bytes));
    }
    if (c == '[') {
      return brackets();
    }
    if (c == '.') {
      ++at_;
      return not_in({});
    }
    if (c == '(') {
      ++at_;
      Expression inside = alternatives(depth + 1);
      space(true);
      if (!skip(")")) {
        fail("')' expected");
      }
      return inside;
    }
    if (in_name(c)) {
      return rule(named(name()));
    }
    return std::nullopt;
  }

  Expression brackets() {
    ++at_;
    const bool negated = skip("^");
    std::vector<std::pair<char32_t, char32_t>> ranges;
    while (peek() != ']') {
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (last < first) {
        fail("a range ends before it begins");
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    return negated ? not_in(std::move(ranges)) : set(std::move(ranges));
  }

  /// One character, or an escape.
  char32_t character() {
    if (at_ >= text_.size()) {
      fail("a text or a set of characters is not closed");
    }
    if (text_[at_] != '\\') {
      const tokenizer::CodePoint c = tokenizer::decode_utf8(text_.data() + at_);
      at_ += c.size;
      return c.value;
    }
    ++at_;
    const char kind = peek();
    at_ += at_ < text_.size() ? 1 : 0;
    const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) {
      constexpr std::string_view kLetters = "nrt\\\"[]-^.";
      constexpr std::string_view kMeanings = "\n\r\t\\\"[]-^.";
      const size_t known = kLetters.find(kind);
      if (kind == '\0' || known == std::string_view::npos) {
        fail("an unknown escape");
      }
      return static_cast<unsigned char>(kMeanings[known]);
    }
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const size_t digit =
          std::string_view("0123456789abcdefABCDEF").find(at_ < text_.size() ? text_[at_] : 'x');
      if (digit == std::string_view::npos) {
        fail(fmt::format("\\{} needs {} hexadecimal digits", kind, digits));
      }
      value = value * 16 + static_cast<char32_t>(digit > 15 ? digit - 6 : digit);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
      fail("an escape that is no character");
    }
    return value;
  }

  Expression repeated(Expression one) {
    for (int times = 0;; ++times) {
      const char c = peek();
      if (c != '*' && c != '+' && c != '?' && c != '{') {
        return one;
      }
      if (times > 10) {
        fail("too many repetitions in a row");
      }
      ++at_;
      if (c != '{') {
        one = repeat(std::move(one), c == '+' ? 1 : 0, c == '?' ? 1 : Expression::kUnbounded);
        continue;
      }
      space(false);
      const int least = number();
      int most = least;
      space(false);
      if (skip(",")) {
        space(false);
        most = peek() == '}' ? Expression::kUnbounded : number();
        space(false);
      }
      if (!skip("}") || (most != Expression::kUnbounded && most < least)) {
        fail("{least,most} expected");
      }
      one = repeat(std::move(one), least, most);
    }
  }

  int number() {
    int value = 0;
    const size_t start = at_;
    for (; peek() >= '0' && peek() <= '9'; ++at_) {
      value = value * 10 + (peek() - '0');
      if (value > kMostRepeats) {
        fail(fmt::format("more than {} repetitions", kMostRepeats));
      }
    }
    if (at_ == start) {
      fail("a number of repetitions expected");
    }
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  Rules rules_;
  std::map<std::string, size_t> indices_;
  std::vector<bool> defined_;
};

}  // namespace

Result<Rules> read_gbnf(std::string_view text) {
  if (text.size() > kLongestGrammar) {
    return input_error(fmt::format("grammar: {} bytes are too long; {} is the limit", text.size(),
                                   kLongestGrammar));
  }
  if (tokenizer::find_invalid_utf8(text) != std::string_view::npos) {
    return input_error("grammar: the text is not UTF-8");
  }
  try {
    return GbnfParser(text).parse();
  } catch (const Failure& failure) {
    return input_error(failure.message);
  }
}

}  // namespace weft::grammar
