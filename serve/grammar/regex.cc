// Regular expressions, as far as they say which texts there are: no look-around, no references
// back.
#include <fmt/format.h>

#include <algorithm>

#include "model/tokenizer/unicode.h"
#include "serve/grammar/rules.h"

namespace weft::grammar {
namespace {

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

constexpr int kDeepestGroup = 100;
constexpr size_t kLongestRegex = 64 << 10;

Ranges without(const Ranges& ranges) { return not_in(ranges).ranges; }

/// A character as it stands between the quotes of a JSON string.
Expression json_character(const Ranges& ranges) {
  std::vector<Expression> ways;
  Ranges plain;
  for (const auto& [first, last] : ranges) {
    // What stands for itself: all but controls, the quote and the backslash.
    for (const auto& [from, to] : Ranges{{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}}) {
      if (std::max(first, from) <= std::min(last, to)) {
        plain.emplace_back(std::max(first, from), std::min(last, to));
      }
    }
    for (const auto& [character, escape] : {std::pair<char32_t, const char*>{'"', "\\\""},
                                            {'\\', "\\\\"},
                                            {'\n', "\\n"},
                                            {'\r', "\\r"},
                                            {'\t', "\\t"},
                                            {'\b', "\\b"},
                                            {'\f', "\\f"}}) {
      if (first <= character && character <= last) {
        ways.push_back(text(escape));
      }
    }
  }
  if (!plain.empty()) {
    ways.push_back(set(std::move(plain)));
  }
  return choice(std::move(ways));
}

class RegexParser {
 public:
  RegexParser(std::string_view text, bool json) : text_(text), json_(json) {}

  Expression parse() {
    const bool begins = peek() == '^';
    at_ += begins ? 1 : 0;
    Expression out = alternatives(0);
    if (json_ && begins && out.kind == Expression::Kind::choice) {
      fail("'^' in front of one of several alternatives: put them in brackets");
    }
    if (at_ < text_.size()) {
      fail(peek() == ')' ? "a ')' too many" : "only the end may follow '$'");
    }
    return out;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw Failure{fmt::format("regular expression, at {}: {}", at_, what)};
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool ended() const {
    return at_ >= text_.size() || peek() == '|' || peek() == ')' ||
           (peek() == '$' && at_ + 1 == text_.size());
  }

  Expression alternatives(int depth) {
    if (depth > kDeepestGroup) {
      fail(fmt::format("brackets more than {} deep", kDeepestGroup));
    }
    std::vector<Expression> parts;
    for (;;) {
      std::vector<Expression> items;
      while (!ended()) {
        items.push_back(repeated(item(depth)));
      }
      parts.push_back(sequence(std::move(items)));
      if (peek() != '|') {
        break;
      }
      ++at_;
    }
    if (depth == 0 && peek() == '$' && at_ + 1 == text_.size()) {
      ++at_;
      if (parts.size() > 1) {
        fail("'$' behind one of several alternatives: put them in brackets");
      }
    }
    return parts.size() == 1 ? std::move(parts[0]) : choice(std::move(parts));
  }

  Expression characters(Ranges ranges) const {
    return json_ ? json_character(ranges) : set(std::move(ranges));
  }

  Expression item(int depth) {
    const char c = peek();
    if (c == '(') {
      ++at_;
      if (peek() == '?') {
        if (text_.substr(at_, 2) != "?:") {
          fail("of what begins with (? there is only (?:");
        }
        at_ += 2;
      }
      Expression inside = alternatives(depth + 1);
      if (peek() != ')') {
        fail("')' expected");
      }
      ++at_;
      return inside;
    }
    if (c == '[') {
      return characters(brackets());
    }
    if (c == '.') {
      ++at_;
      return characters(without({{'\n', '\n'}}));
    }
    if (c == '^' || c == '$') {
      fail(fmt::format("'{}' may only stand at the {}", c, c == '^' ? "beginning" : "end"));
    }
    if (c == '*' || c == '+' || c == '?' || c == '{') {
      fail(fmt::format("nothing to repeat in front of '{}'", c));
    }
    return characters(one());
  }

  /// A character or an escape; an escape can be several characters.
  Ranges one() {
    if (at_ >= text_.size()) {
      fail("a character expected");
    }
    const tokenizer::CodePoint c = tokenizer::decode_utf8(text_.data() + at_);
    at_ += c.size;
    if (c.value != '\\') {
      return {{c.value, c.value}};
    }
    const char kind = peek();
    ++at_;
    const Ranges digits = {{'0', '9'}};
    const Ranges word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const Ranges space = {{'\t', '\r'}, {' ', ' '}};
    switch (kind) {
      case 'd':
        return digits;
      case 'D':
        return without(digits);
      case 'w':
        return word;
      case 'W':
        return without(word);
      case 's':
        return space;
      case 'S':
        return without(space);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case 'x':
        return hexadecimal(2);
      case 'u':
        return hexadecimal(4);
      default:
        break;
    }
    if (kind == '\0' || (kind >= '0' && kind <= '9') || (kind >= 'a' && kind <= 'z') ||
        (kind >= 'A' && kind <= 'Z')) {
      fail(fmt::format("the escape '\\{}' is not supported", kind));
    }
    const auto same = static_cast<unsigned char>(kind);
    if (same >= 0x80) {
      fail("an escape of a character beyond ASCII");
    }
    return {{same, same}};
  }

  Ranges hexadecimal(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const size_t digit =
          std::string_view("0123456789abcdefABCDEF").find(at_ < text_.size() ? text_[at_] : 'x');
      if (digit == std::string_view::npos) {
        fail(fmt::format("{} hexadecimal digits expected", digits));
      }
      value = value * 16 + static_cast<char32_t>(digit > 15 ? digit - 6 : digit);
    }
    if (value >= 0xd800 && value < 0xe000) {
      fail("a surrogate is no character");
    }
    return {{value, value}};
  }

  Ranges brackets() {
    ++at_;
    const bool negated = peek() == '^';
    at_ += negated ? 1 : 0;
    Ranges ranges;
    for (bool first = true; peek() != ']' || first; first = false) {
      if (at_ >= text_.size()) {
        fail("']' expected");
      }
      if (first && peek() == ']') {
        ++at_;
        ranges.emplace_back(']', ']');
        continue;
      }
      if (text_.substr(at_, 2) == "[:") {
        fail("classes such as [:alpha:] are not supported");
      }
      const Ranges from = one();
      const bool range = peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (!range) {
        ranges.insert(ranges.end(), from.begin(), from.end());
        continue;
      }
      ++at_;
      const Ranges to = one();
      if (from.size() != 1 || to.size() != 1 || from[0].first != from[0].second ||
          to[0].first != to[0].second || to[0].first < from[0].first) {
        fail("a range of characters that is none");
      }
      ranges.emplace_back(from[0].first, to[0].first);
    }
    ++at_;
    return negated ? without(ranges) : ranges;
  }

  Expression repeated(Expression part) {
    const char c = peek();
    if (c != '*' && c != '+' && c != '?' && c != '{') {
      return part;
    }
    ++at_;
    if (c != '{') {
      part = repeat(std::move(part), c == '+' ? 1 : 0, c == '?' ? 1 : Expression::kUnbounded);
    } else {
      const int least = number();
      int most = least;
      if (peek() == ',') {
        ++at_;
        most = peek() == '}' ? Expression::kUnbounded : number();
      }
      if (peek() != '}' || (most != Expression::kUnbounded && most < least)) {
        fail("{least,most} expected");
      }
      ++at_;
      part = repeat(std::move(part), least, most);
    }
    if (peek() == '?') {
      ++at_;  // as few as possible: the same texts
    }
    if (peek() == '*' || peek() == '+' || peek() == '{') {
      fail("a repetition of a repetition: put it in brackets");
    }
    return part;
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
  const bool json_;
  size_t at_ = 0;
};

}  // namespace

/// What a pattern without ^ or $ leaves open at its ends is the caller's.
Result<Expression> regex_expression(std::string_view text, bool string_of_json) {
  if (text.size() > kLongestRegex) {
    return input_error(fmt::format("regular expression: {} bytes are too long; {} is the limit",
                                   text.size(), kLongestRegex));
  }
  if (tokenizer::find_invalid_utf8(text) != std::string_view::npos) {
    return input_error("regular expression: the text is not UTF-8");
  }
  try {
    return RegexParser(text, string_of_json).parse();
  } catch (const Failure& failure) {
    return input_error(failure.message);
  }
}

Result<Rules> read_regex(std::string_view text) {
  WEFT_ASSIGN(Expression whole, regex_expression(text, false));
  Rules out;
  out.add("regex", std::move(whole));
  return out;
}

}  // namespace weft::grammar
