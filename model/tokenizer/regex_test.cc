#include "model/tokenizer/regex.h"

#include <gtest/gtest.h>

#include <string>

namespace weft::tokenizer {
namespace {

/// The text with matches in brackets.
std::string marked(std::string_view pattern, std::string_view text) {
  const Result<Regex> regex = Regex::compile(pattern);
  if (!regex.ok()) {
    return "error: " + regex.error().message;
  }
  std::vector<Match> matches;
  if (const Status status = regex->find_all(text, matches); !status.ok()) {
    return "error: " + status.error().message;
  }
  std::string out;
  for (const Match& match : matches) {
    out += match.matched ? "[" + std::string(match.text) + "]" : std::string(match.text);
  }
  return out;
}

TEST(Regex, GivesMatchesAndWhatIsBetween) {
  EXPECT_EQ(marked("b+", "abbcb"), "a[bb]c[b]");
  EXPECT_EQ(marked("x", "abc"), "abc");
  EXPECT_EQ(marked("a", ""), "");
}

TEST(Regex, EmptyMatchesAdvance) {
  EXPECT_EQ(marked("x*", "axxb"), "[]a[xx]b[]");
  EXPECT_EQ(marked("(?=é)", "aéé"), "a[]é[]é");
}

TEST(Regex, ReadsRubySyntax) {
  EXPECT_EQ(marked(R"(\s)", "a\u00a0\u180e\u3000b"),
            "a[\u00a0]\u180e[\u3000]b");  // U+180E is no space
  EXPECT_EQ(marked(R"([\s,]+)", "a ,\u2028b"), "a[ ,\u2028]b");
  EXPECT_EQ(marked(R"([^\s]+)", "a b"), "[a] [b]");
  EXPECT_EQ(marked(R"(\w+)", "a\u0301_1 \u2460"), "[a\u0301_1] \u2460");
  EXPECT_EQ(marked(R"(\h+)", "xFfz"), "x[Ff]z");
  EXPECT_EQ(marked("^b", "a\nb"), "a\n[b]");  // the caret stands at every line
  EXPECT_EQ(marked(R"([]a]+)", "b]a"), "b[]a]");
  EXPECT_EQ(marked(R"(\\s)", R"(a\s)"), R"(a[\s])");
  EXPECT_EQ(marked(R"(\p{Lu}+\x{e9}+[\p{N}]{2})", "aBBéé12"), "a[BBéé12]");
}

TEST(Regex, RefusesWhatItWouldReadDifferently) {
  for (const char* pattern :
       {"[a[b]]", "[a&&b]", R"(\bx)", "a{1,2}+", "(?m:.)", "(?im).", R"([\W])", "", "(", R"(\C)"}) {
    EXPECT_EQ(marked(pattern, "x").substr(0, 6), "error:") << pattern;
  }
}

TEST(Regex, EndlessBacktrackingIsAnError) {
  const std::string text(3000, 'a');
  EXPECT_NE(marked("(a+a+)+[bc]", text).find("failed at byte 0"), std::string::npos);
}

}  // namespace
}  // namespace weft::tokenizer
