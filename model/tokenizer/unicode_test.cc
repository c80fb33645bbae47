#include "model/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "model/tokenizer/byte_alphabet.h"

namespace weft::tokenizer {
namespace {

TEST(Unicode, EveryCodePointSurvivesUtf8) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    append_utf8(text, c);
    const CodePoint read = decode_utf8(text.data());
    ASSERT_EQ(uint32_t{read.value}, c);
    ASSERT_EQ(read.size, text.size());
    ASSERT_EQ(previous_utf8(text.data(), text.data() + text.size()), text.data());
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(find_invalid_utf8(text), surrogate ? 0 : std::string::npos) << c;
  }
}

TEST(Unicode, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8("0123456789abcdef\xff"), 16u);
  EXPECT_EQ(find_invalid_utf8("é\xc3"), 2u);             // cut short
  EXPECT_EQ(find_invalid_utf8("\xc0\xaf"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xf4\x90\x80\x80"), 0u);  // beyond U+10FFFF
  EXPECT_EQ(find_invalid_utf8("a\xed\xa0\x80"), 1u);     // a surrogate
  EXPECT_EQ(find_invalid_utf8("\x80"), 0u);
  EXPECT_EQ(find_invalid_utf8(""), std::string::npos);
}

TEST(Unicode, TakesWholeCharactersAndKeepsTheBeginningOfOne) {
  std::string bytes = "a\xe5\x8f";
  std::string out;
  take_utf8(bytes, out, false);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(bytes, "\xe5\x8f");
  bytes += "\xab";
  take_utf8(bytes, out, false);
  EXPECT_EQ(out, "a叫");
  EXPECT_EQ(bytes, "");
}

TEST(Unicode, ReplacesEachMaximalInvalidPieceOnce) {
  std::string bytes = "\xf0\x9f\x98x\xff\xed\xa0y\xe2\x82";
  std::string out;
  take_utf8(bytes, out, true);
  EXPECT_EQ(out, "\uFFFDx\uFFFD\uFFFD\uFFFDy\uFFFD");
  EXPECT_EQ(bytes, "");
}

TEST(Unicode, ClassesOfSomeCharacters) {
  const uint8_t* classes = class_table();
  EXPECT_EQ(classes[U'a'], kLetter | kLower | kWord);
  EXPECT_EQ(classes[U'A'], kLetter | kUpper | kWord);
  EXPECT_EQ(classes[U'7'], kNumber | kNumeric | kWord);
  EXPECT_EQ(classes[U'_'], kWord);
  EXPECT_EQ(classes[U' '], kSpace);
  EXPECT_EQ(classes[0x180e], 0);
  EXPECT_EQ(classes[0x301], kUpper | kLower | kWord | kJoins);
  EXPECT_EQ(classes[0x65e5], kLetter | kUpper | kLower | kWord);
  EXPECT_EQ(classes[0x10ffff], 0);
}

TEST(ByteAlphabet, WritesAndReadsEveryByte) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    bytes.push_back(static_cast<char>(byte));
  }
  std::string characters;
  append_byte_characters(bytes, characters);
  EXPECT_EQ(bytes_of_characters(characters), bytes);
  EXPECT_EQ(uint32_t{byte_character(' ')}, 0x120u);
  EXPECT_EQ(uint32_t{byte_character(0xad)}, 0x143u);
  EXPECT_FALSE(bytes_of_characters(" ").has_value());
  EXPECT_FALSE(bytes_of_characters("日").has_value());
}

}  // namespace
}  // namespace weft::tokenizer
