#include "model/tokenizer/scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "model/tokenizer/regex.h"

namespace weft::tokenizer {
namespace {

// What the patterns tell apart: letters of every case and of none, marks, digits, white space of
// several kinds, line breaks, apostrophes and what may follow them (U+017F is an s in any case),
// slashes and other signs.
constexpr std::string_view kCharacters[] = {
    "a",          "s",      "S",      "T",          "e",          "E",          "l",
    "L",          "v",      "r",      "m",          "d",          "Z",          "\u00e9",
    "\u00c9",     "\u017f", "\u01c5", "\u02b0",     "\u00df",     "\u0130",     "\u65e5",
    "\u0915",     "\u093f", "\u0301", "\u05d0",     "\u0627",     "1",          "7",
    "\u0663",     "\u00bd", "\u2167", "\u3007",     " ",          " ",          " ",
    "\t",         "\n",     "\r",     "\r\n",       "\v",         "\u00a0",     "\u3000",
    "\u2028",     "\u0085", "\u180e", "\u200b",     "'",          "'",          "\u2019",
    "'s",         "'LL",    "'re",    "/",          "//",         ".",          "_",
    "-",          "\u20ac", "\u00ab", "\U0001f600", "\U0001f1e9", "\U00010400", "\U00010428",
    "\U0001d400", "\ufffd", "\x01"};

class Scanners : public testing::TestWithParam<std::string_view> {};

TEST_P(Scanners, MatchAsTheRegularExpressionDoes) {
  const std::string_view pattern = GetParam();
  const Scanner scanner = find_scanner(pattern).value();
  const Result<Regex> regex = Regex::compile(pattern);
  ASSERT_TRUE(regex.ok()) << regex.error().message;
  std::mt19937 random(11);
  for (int round = 0; round < 30000; ++round) {
    std::string text;
    const auto kinds = 1 + random() % std::size(kCharacters);  // few kinds make long runs
    const auto first = random() % std::size(kCharacters);
    for (auto size = random() % 24; size > 0; --size) {
      text += kCharacters[(first + random() % kinds) % std::size(kCharacters)];
    }
    std::vector<std::string_view> pieces;
    scanner(text, pieces);
    std::vector<Match> matches;
    ASSERT_TRUE(regex->find_all(text, matches).ok());
    std::vector<std::string_view> expected;
    for (const Match& match : matches) {
      ASSERT_TRUE(match.matched) << testing::PrintToString(text);
      expected.push_back(match.text);
    }
    ASSERT_EQ(pieces, expected) << testing::PrintToString(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Scanners,
                         testing::Values(kGpt2Pattern, kLlama3Pattern, kQwen2Pattern,
                                         kTekkenPattern, kGpt4oPattern));

TEST(Scanner, UnknownPatternHasNone) { EXPECT_FALSE(find_scanner(R"(\s+)").has_value()); }

}  // namespace
}  // namespace weft::tokenizer
