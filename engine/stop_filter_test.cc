#include "engine/stop_filter.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

std::string stream(std::vector<std::string> stops, std::string_view text, size_t step) {
  StopFilter filter(std::move(stops));
  std::string shown;
  for (size_t i = 0; i < text.size(); i += step) {
    shown += filter.push(text.substr(i, step));
  }
  return shown + filter.flush();
}

TEST(StopFilter, CutsAtTheEarliestStopHoweverTheTextIsCut) {
  for (size_t step = 1; step < 12; ++step) {
    EXPECT_EQ(stream({"\n\n"}, "one\ntwo\n\nthree", step), "one\ntwo");
    EXPECT_EQ(stream({"three", "two"}, "one\ntwo\n\nthree", step), "one\n");
    EXPECT_EQ(stream({"four"}, "one two thr fou", step), "one two thr fou");
    EXPECT_EQ(stream({"aab"}, "aaaab", step), "aa");
    EXPECT_EQ(stream({"", "x"}, "abc", step), "abc");
  }
}

TEST(StopFilter, HoldsBackOnlyWhatMayBecomeAStop) {
  StopFilter filter({"END"});
  EXPECT_EQ(filter.push("abcE"), "abc");
  EXPECT_EQ(filter.push("x"), "Ex");
  EXPECT_EQ(filter.push("EN"), "");
  EXPECT_EQ(filter.push("Dmore"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.push("more"), "");
  EXPECT_EQ(filter.flush(), "");
}

TEST(StopFilter, ShowsTheStopStringWhereItShall) {
  StopFilter filter({"END"}, true);
  EXPECT_EQ(filter.push("a E"), "a ");
  EXPECT_EQ(filter.push("ND b"), "END");
  EXPECT_TRUE(filter.stopped());
}

}  // namespace
}  // namespace weft
