// PTX in words.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft::ptx {

struct Token {
  enum class Kind : uint8_t { end, word, integer, f32, f64, string, sign, bad };
  Kind kind = Kind::end;
  std::string_view text;
  uint64_t bits = 0;  ///< of a number
  uint32_t line = 1;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  void skip_blanks();
  Token number();

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
};

}  // namespace weft::ptx
