#include "model/tokenizer/byte_alphabet.h"

#include <array>

#include "model/tokenizer/unicode.h"

namespace weft::tokenizer {
namespace {

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<int16_t, 0x180> bytes{};  ///< by character; -1 for those not in the alphabet
};

constexpr Alphabet kAlphabet = [] {
  Alphabet alphabet;
  alphabet.bytes.fill(-1);
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool visible =
        (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    const char32_t c = visible ? byte : next++;
    alphabet.characters[byte] = c;
    alphabet.bytes[c] = static_cast<int16_t>(byte);
  }
  return alphabet;
}();

}  // namespace

char32_t byte_character(uint8_t byte) { return kAlphabet.characters[byte]; }

std::optional<std::string> bytes_of_characters(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (const char* p = text.data(); p != text.data() + text.size();) {
    const CodePoint c = decode_utf8(p);
    if (c.value >= kAlphabet.bytes.size() || kAlphabet.bytes[c.value] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.bytes[c.value]));
    p += c.size;
  }
  return bytes;
}

void append_byte_characters(std::string_view text, std::string& out) {
  for (const char c : text) {
    append_utf8(out, byte_character(static_cast<uint8_t>(c)));
  }
}

}  // namespace weft::tokenizer
