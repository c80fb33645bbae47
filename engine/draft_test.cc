#include "engine/draft.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

std::vector<int32_t> drafted(NgramDrafter& drafter, const std::vector<int32_t>& tokens,
                             int64_t most) {
  const auto span = drafter.draft(tokens, most);
  return {span.begin(), span.end()};
}

TEST(NgramDrafter, SaysWhatFollowedTheLastTime) {
  NgramDrafter drafter(1024);
  EXPECT_TRUE(drafted(drafter, {1, 2, 3, 4, 5, 6, 7}, 4).empty());
  EXPECT_EQ(drafted(drafter, {1, 2, 3, 4, 5, 6, 7, 1, 2, 3}, 4), (std::vector{4, 5, 6, 7}));
  EXPECT_EQ(drafted(drafter, {1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 9, 1, 2, 3}, 2), (std::vector{9, 1}));
}

TEST(NgramDrafter, NeedsThreeTokens) {
  NgramDrafter drafter(1024);
  EXPECT_TRUE(drafted(drafter, {1}, 4).empty());
  EXPECT_TRUE(drafted(drafter, {1, 1}, 4).empty());
  EXPECT_TRUE(drafted(drafter, {1, 1, 1}, 4).empty());
  EXPECT_EQ(drafted(drafter, {1, 1, 1, 1}, 4), (std::vector{1}));
}

// Places are shared by many keys: one that was overwritten is no draft, and never a wrong one.
TEST(NgramDrafter, KeepsToItsMemory) {
  NgramDrafter drafter(2);
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 1000; ++i) {
    tokens.push_back(i * 7 % 50);
    const auto found = drafter.draft(tokens, 3);
    if (!found.empty()) {
      const auto place = static_cast<size_t>(found.data() - tokens.data());
      ASSERT_GE(place, 3U);
      for (size_t k = 1; k <= 3; ++k) {
        EXPECT_EQ(tokens[place - k], tokens[tokens.size() - k]);
      }
    }
  }
}

}  // namespace
}  // namespace weft
