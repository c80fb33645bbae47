#include "engine/resident/split_keys.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::resident {
namespace {

// Splits follow one another, none is empty, and together they have the keys that a query sees.
TEST(SplitKeys, HaveEachKeyOnce) {
  for (const KeysOf keys : {KeysOf::heads, KeysOf::latents}) {
    for (const int32_t count : {1, 2, 5, 16, 33, 66}) {
      for (const int32_t window : {0, 1, 128, 1000}) {
        for (const int64_t position : {0, 1, 63, 64, 640, 1022, 1023, 1024, 4095, 8192, 131071}) {
          const Splits splits{.count = count, .window = window};
          const int64_t seen = window > 0 ? std::min<int64_t>(window, position + 1) : position + 1;
          int64_t next = position + 1 - seen;
          const int64_t active = SplitKeys(splits, position, 0, keys).active;
          ASSERT_TRUE(active >= 1 && active <= count) << position;
          for (int64_t split = 0; split < active; ++split) {
            const SplitKeys own(splits, position, split, keys);
            ASSERT_EQ(own.active, active);
            ASSERT_EQ(own.first, next) << "split " << split << " of position " << position;
            ASSERT_LT(own.first, own.last);
            next = own.last;
          }
          EXPECT_EQ(next, position + 1) << count << " splits, a window of " << window;
        }
      }
    }
  }
}

// About as the square root of the keys.
TEST(SplitKeys, AreMoreAndLongerWhereThereAreMoreKeys) {
  const Splits splits{.count = 1000};
  const auto active = [&](int64_t tokens) { return SplitKeys(splits, tokens - 1, 0).active; };
  EXPECT_EQ(active(64), 1);
  EXPECT_EQ(active(512), 4);
  EXPECT_EQ(active(640), 5);
  EXPECT_EQ(active(2048), 8);
  EXPECT_EQ(active(4096), 11);
  EXPECT_EQ(active(8192), 16);
  EXPECT_EQ(active(32768), 32);
  EXPECT_EQ(active(131072), 64);
}

}  // namespace
}  // namespace weft::resident
