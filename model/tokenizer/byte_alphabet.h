// GPT-2's way to write any byte as a visible character: printable Latin-1 bytes stand for
// themselves, the others for the characters from U+0100 on. Byte-level vocabularies are written in
// this alphabet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tokenizer {

/// The character that stands for a byte.
char32_t byte_character(uint8_t byte);

/// The bytes that `text` (valid UTF-8) stands for; nothing when a character is not in the alphabet.
std::optional<std::string> bytes_of_characters(std::string_view text);

/// Appends the characters of the bytes of `text`.
void append_byte_characters(std::string_view text, std::string& out);

}  // namespace weft::tokenizer
