// Code points, their classes and UTF-8, as tokenizers see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::tokenizer {

// What a code point is; the bits of class_table(). Written by make_unicode_classes.py.
constexpr uint8_t kLetter = 1;    ///< \p{L}
constexpr uint8_t kNumber = 2;    ///< \p{N}
constexpr uint8_t kSpace = 4;     ///< \s: the property White_Space
constexpr uint8_t kUpper = 8;     ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
constexpr uint8_t kLower = 16;    ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
constexpr uint8_t kNumeric = 32;  ///< what the Digits pre-tokenizer calls a digit
constexpr uint8_t kWord = 64;     ///< \w of single-word added tokens
constexpr uint8_t kJoins = 128;   ///< NFC may change it or combine it with what stands before it

/// The classes of all 0x110000 code points, built at the first call (1.1 MB).
const uint8_t* class_table();

/// Whether the reference's normalisers do not know this character yet and leave it alone.
bool too_new_to_normalize(char32_t c);

struct CodePoint {
  char32_t value = 0;
  uint32_t size = 1;  ///< bytes in UTF-8
};

/// The code point at `p`, which must start a valid sequence.
inline CodePoint decode_utf8(const char* p) {
  const auto byte = [p](int i) { return static_cast<uint8_t>(p[i]); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) {
    return {lead, 1};
  }
  if (lead < 0xe0) {
    return {(lead & 0x1f) << 6 | (byte(1) & 0x3fu), 2};
  }
  if (lead < 0xf0) {
    return {(lead & 0x0f) << 12 | (byte(1) & 0x3fu) << 6 | (byte(2) & 0x3fu), 3};
  }
  return {
      (lead & 0x07) << 18 | (byte(1) & 0x3fu) << 12 | (byte(2) & 0x3fu) << 6 | (byte(3) & 0x3fu),
      4};
}

/// The start of the code point that ends just before `p` (there must be one at or after `begin`).
inline const char* previous_utf8(const char* begin, const char* p) {
  do {
    --p;
  } while (p > begin && (static_cast<uint8_t>(*p) & 0xc0) == 0x80);
  return p;
}

/// Whether a valid text is a single character.
bool is_one_character(std::string_view text);

void append_utf8(std::string& out, char32_t c);

/// The byte offset of the first invalid sequence, or npos.
size_t find_invalid_utf8(std::string_view text);

/// Moves the front of `bytes` to `out` as UTF-8, with one U+FFFD for each maximal invalid piece. A
/// sequence that the end cuts short stays in `bytes`, unless `all` says that nothing more will
/// come.
void take_utf8(std::string& bytes, std::string& out, bool all);

}  // namespace weft::tokenizer
