#include "sim/hopper/ptx_lexer.h"

#include <bit>
#include <charconv>

namespace weft::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%' ||
         c == '.';
}
bool continues_word(char c) { return begins_word(c) || is_digit(c); }

}  // namespace

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\0') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') {
        ++at_;
      }
    } else if (text_.substr(at_, 2) == "/*") {
      while (at_ < text_.size() && text_.substr(at_, 2) != "*/") {
        line_ += text_[at_] == '\n' ? 1 : 0;
        ++at_;
      }
      at_ += at_ < text_.size() ? 2 : 0;
    } else {
      return;
    }
  }
}

/// 12, 0x1f, 0f3F800000, 0d..., 1.5, 1e-3; what integers have behind them (U) is nothing.
Token Lexer::number() {
  Token token{Token::Kind::integer, {}, 0, line_};
  const size_t begin = at_;
  const char* const end = text_.data() + text_.size();
  const char kind = at_ + 1 < text_.size() && text_[at_] == '0' ? text_[at_ + 1] : ' ';
  int base = 10;
  if (kind == 'x' || kind == 'X' || kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
    base = 16;
    at_ += 2;
    if (kind == 'f' || kind == 'F') {
      token.kind = Token::Kind::f32;
    } else if (kind == 'd' || kind == 'D') {
      token.kind = Token::Kind::f64;
    }
  }
  const auto whole = std::from_chars(text_.data() + at_, end, token.bits, base);
  const char* last = whole.ptr;
  if (base == 10 && last != end && (*last == '.' || *last == 'e' || *last == 'E')) {
    double value = 0;
    const auto fraction = std::from_chars(text_.data() + begin, end, value);
    token.kind = fraction.ec == std::errc() ? Token::Kind::f64 : Token::Kind::bad;
    token.bits = std::bit_cast<uint64_t>(value);
    last = fraction.ptr;
  } else if (whole.ec != std::errc()) {
    token.kind = Token::Kind::bad;
  } else if (last != end && *last == 'U') {
    ++last;
  }
  at_ = static_cast<size_t>(last - text_.data());
  token.text = text_.substr(begin, at_ - begin);
  return token;
}

Token Lexer::next() {
  skip_blanks();
  Token token{Token::Kind::end, {}, 0, line_};
  if (at_ >= text_.size()) {
    return token;
  }
  const size_t begin = at_;
  if (is_digit(text_[at_])) {
    return number();
  }
  if (begins_word(text_[at_])) {
    token.kind = Token::Kind::word;
    while (at_ < text_.size() && (continues_word(text_[at_]) || text_.substr(at_, 2) == "::" ||
                                  (text_[at_] == ':' && text_[at_ - 1] == ':'))) {
      ++at_;
    }
  } else if (text_[at_] == '"') {
    token.kind = Token::Kind::string;
    at_ = text_.find('"', at_ + 1);
    if (at_ == std::string_view::npos) {
      at_ = text_.size();
      token.kind = Token::Kind::bad;
    } else {
      ++at_;
    }
  } else {
    token.kind = Token::Kind::sign;
    ++at_;
  }
  token.text = text_.substr(begin, at_ - begin);
  return token;
}

}  // namespace weft::ptx
