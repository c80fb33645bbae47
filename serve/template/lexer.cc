#include "serve/template/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "model/tokenizer/unicode.h"

namespace weft::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}

/// Every end of a line becomes '\n', and one at the end of the text is no part of it.
std::string normalize_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      i += i + 1 < source.size() && source[i + 1] == '\n' ? 1 : 0;
      out += '\n';
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') {
    out.pop_back();
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const size_t tag = find_tag(at_);
      if (tag == std::string_view::npos) {
        add_text(source_.substr(at_));
        break;
      }
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
      add_text(trimmed(source_.substr(at_, tag - at_), source_[tag + 1], sign));
      advance(tag);
      switch (source_[tag + 1]) {
        case '#':
          comment();
          break;
        case '{':
          advance(at_ + (sign == '-' ? 3 : 2));  // '+' here is the operator
          add(Token::Kind::begin_print);
          expression("}}", Token::Kind::end_print);
          break;
        default:
          if (!raw()) {
            advance(at_ + (sign == '-' || sign == '+' ? 3 : 2));
            add(Token::Kind::begin_block);
            expression("%}", Token::Kind::end_block);
          }
      }
    }
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Failure{fmt::format("line {}: {}", line_, what)};
  }

  size_t find_tag(size_t from) const {
    for (size_t i = source_.find('{', from); i != std::string_view::npos;
         i = source_.find('{', i + 1)) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') {
        return i;
      }
    }
    return std::string_view::npos;
  }

  /// What stays of the text before a tag: `-` takes all white space off its end; without a sign a
  /// block or comment that is alone at the beginning of its line takes what indents it.
  std::string_view trimmed(std::string_view text, char tag, char sign) const {
    if (sign == '-') {
      return strip_right(text);
    }
    if (sign == '+' || tag == '{') {
      return text;
    }
    const size_t line = text.rfind('\n') + 1;  // npos + 1 is 0
    return (line > 0 || at_line_start_) && strip(text.substr(line)).empty() ? text.substr(0, line)
                                                                            : text;
  }

  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void add(Token::Kind kind, std::string text = {}, Value value = {}) {
    tokens_.push_back({kind, std::move(text), std::move(value), line_});
  }

  void add_text(std::string_view text) {
    if (!text.empty()) {
      add(Token::Kind::text, std::string(text));
    }
  }

  /// Behind the end of a tag that `sign` stands in front of.
  void close(size_t end, char sign, bool block) {
    size_t to = end;
    if (sign == '-') {
      to = source_.size() - strip_left(source_.substr(end)).size();
    } else if (sign != '+' && block && end < source_.size() && source_[end] == '\n') {
      ++to;
    }
    at_line_start_ = source_[to - 1] == '\n';
    advance(to);
  }

  void comment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string_view::npos) {
      fail("a comment ({#) is not closed");
    }
    close(end + 2, end > at_ + 2 ? source_[end - 1] : '\0', true);
  }

  /// {% raw %} ... {% endraw %}, if that is what stands here.
  bool raw() {
    size_t i = at_ + 2;
    i += source_[i] == '-' || source_[i] == '+' ? 1 : 0;
    if (!word(i, "raw")) {
      return false;
    }
    const bool minus = source_.substr(i, 3) == "-%}";
    if (!minus && source_.substr(i, 2) != "%}") {
      return false;
    }
    i += minus ? 3 : 2;
    if (minus) {
      i = source_.size() - strip_left(source_.substr(i)).size();
    }
    at_line_start_ = source_[i - 1] == '\n';
    for (size_t tag = source_.find("{%", i); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 1)) {
      size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : '\0';
      end += sign == '-' || sign == '+' ? 1 : 0;
      if (!word(end, "endraw")) {
        continue;
      }
      const char closing = end < source_.size() ? source_[end] : '\0';
      end += closing == '-' || closing == '+' ? 1 : 0;
      if (source_.substr(end, 2) == "%}") {
        add_text(trimmed(source_.substr(i, tag - i), '%', sign));
        close(end + 2, closing, true);
        return true;
      }
    }
    fail("a raw block is not closed");
  }

  /// Steps over white space, `name` and white space.
  bool word(size_t& at, std::string_view name) const {
    size_t i = source_.size() - strip_left(source_.substr(std::min(at, source_.size()))).size();
    if (source_.substr(i, name.size()) != name) {
      return false;
    }
    i += name.size();
    at = source_.size() - strip_left(source_.substr(i)).size();
    return true;
  }

  void expression(std::string_view end, Token::Kind kind) {
    std::string open;  // the brackets that are not closed
    for (;;) {
      advance(source_.size() - strip_left(source_.substr(at_)).size());
      if (at_ >= source_.size()) {
        fail(fmt::format("'{}' is missing", end));
      }
      const char c = source_[at_];
      const bool block = kind == Token::Kind::end_block;
      const size_t sign = c == '-' || (c == '+' && block) ? 1 : 0;
      if (open.empty() && source_.substr(at_ + sign, 2) == end) {
        add(kind);
        close(at_ + sign + 2, sign == 0 ? '\0' : c, block);
        return;
      }
      if (is_digit(c)) {
        number();
      } else if (starts_name(c)) {
        size_t i = at_;
        while (i < source_.size() && (starts_name(source_[i]) || is_digit(source_[i]))) {
          ++i;
        }
        add(Token::Kind::name, std::string(source_.substr(at_, i - at_)));
        advance(i);
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        sign_of(c, open);
      }
    }
  }

  void sign_of(char c, std::string& open) {
    constexpr std::array<std::string_view, 7> kPairs = {"//", "**", "==", "!=", ">=", "<=", "||"};
    const std::string_view two = source_.substr(at_, 2);
    if (two != "||" && std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end()) {
      add(Token::Kind::operator_, std::string(two));
      advance(at_ + 2);
      return;
    }
    if (std::string_view("+-/*%~[](){}=<>.:|,;").find(c) == std::string_view::npos) {
      fail(fmt::format("unexpected character '{}'", source_.substr(at_, 1)));
    }
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        fail(fmt::format("unexpected '{}'", c));
      }
      open.pop_back();
    }
    add(Token::Kind::operator_, std::string(1, c));
    advance(at_ + 1);
  }

  void number() {
    size_t i = at_;
    std::string digits;
    const auto take = [&] {
      while (i < source_.size() &&
             (is_digit(source_[i]) || (source_[i] == '_' && is_digit(source_[i - 1])))) {
        digits += source_[i] == '_' ? "" : std::string(1, source_[i]);
        ++i;
      }
    };
    take();
    bool real = false;
    if (i + 1 < source_.size() && source_[i] == '.' && is_digit(source_[i + 1]) &&
        (at_ == 0 || source_[at_ - 1] != '.')) {
      real = true;
      digits += source_[i++];
      take();
    }
    if (i < source_.size() && (source_[i] == 'e' || source_[i] == 'E')) {
      const size_t sign =
          i + 1 < source_.size() && (source_[i + 1] == '+' || source_[i + 1] == '-') ? 1 : 0;
      if (i + 1 + sign < source_.size() && is_digit(source_[i + 1 + sign])) {
        real = true;
        digits += source_.substr(i, 1 + sign);
        i += 1 + sign;
        take();
      }
    }
    if (!real && digits.size() > 30) {
      fail("a number has more than 30 digits");
    }
    Integer whole = 0;
    for (const char digit : real ? "" : digits) {
      whole = whole * 10 + (digit - '0');
    }
    add(Token::Kind::number, {},
        real ? Value::real(std::strtod(digits.c_str(), nullptr)) : Value::integer(whole));
    advance(i);
  }

  void string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = escape(i + 1, out);
      } else {
        out += source_[i++];
      }
    }
    if (i >= source_.size()) {
      fail("a string is not closed");
    }
    add(Token::Kind::string, std::move(out));
    advance(i + 1);
  }

  /// One escape of Python's strings, whose letter stands at `i`; gives the place behind it.
  size_t escape(size_t i, std::string& out) {
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      out += kMeanings[known];
      return i + 1;
    }
    if (c == '\n') {
      return i + 1;
    }
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const bool octal = c >= '0' && c <= '7';
    if (digits == 0 && !octal) {
      out += '\\';
      return i;
    }
    const size_t first = octal ? i : i + 1;
    size_t end = first;
    while (end < source_.size() && end < first + (octal ? 3 : digits) &&
           (octal ? source_[end] >= '0' && source_[end] <= '7'
                  : std::isxdigit(static_cast<unsigned char>(source_[end])) != 0)) {
      ++end;
    }
    const auto code = std::strtoul(std::string(source_.substr(first, end - first)).c_str(), nullptr,
                                   octal ? 8 : 16);
    if ((!octal && end != first + digits) || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      fail("an escape in a string is no character");
    }
    tokenizer::append_utf8(out, static_cast<char32_t>(code));
    return end;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string text = normalize_lines(source);
  return Lexer(text).run();
}

}  // namespace weft::jinja
