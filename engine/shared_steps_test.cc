#include "engine/shared_steps.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace weft {
namespace {

TEST(SharedSteps, GivesHalvesToBothSides) {
  SharedSteps tile;
  EXPECT_TRUE(tile.take_back(7).empty());
  tile.open(7, 100);
  EXPECT_TRUE(tile.take_back(6).empty());
  EXPECT_EQ(tile.take_front(8), (Range{0, 50}));
  EXPECT_EQ(tile.take_back(7), (Range{75, 100}));
  EXPECT_EQ(tile.take_front(20), (Range{50, 70}));
  EXPECT_EQ(tile.take_back(7), (Range{73, 75}));
  EXPECT_EQ(tile.take_front(20), (Range{70, 73}));
  EXPECT_TRUE(tile.take_back(7).empty());
  EXPECT_TRUE(tile.take_front(20).empty());
  EXPECT_FALSE(tile.finish(27));  // what was taken from the back
  EXPECT_TRUE(tile.finish(73 + 1));
}

TEST(SharedSteps, TheOwnerKeepsTheLastStep) {
  SharedSteps tile;
  tile.open(1, 1);
  EXPECT_TRUE(tile.take_back(1).empty());
  EXPECT_EQ(tile.take_front(1), (Range{0, 1}));
  EXPECT_TRUE(tile.finish(2));
}

// One owner opens tile after tile, three others take from it: every step once, every tile announced
// once, after all its steps.
TEST(SharedSteps, EveryStepIsDoneOnce) {
  constexpr int64_t kTiles = 2000;
  constexpr int64_t kSteps = 97;
  SharedSteps tile;
  std::vector<int> done(kTiles * kSteps, 0);  // plain: what finish() orders is not a race
  std::atomic<int64_t> announced{0};
  const auto compute = [&](int64_t tag, Range steps) {
    for (int64_t i = steps.begin; i < steps.end; ++i) {
      ++done[static_cast<size_t>((tag - 1) * kSteps + i)];
    }
  };
  std::vector<std::thread> others;
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&] {
      for (int64_t tag = 1; tag <= kTiles;) {
        const Range steps = tile.take_back(tag);
        if (!steps.empty()) {
          compute(tag, steps);
          if (tile.finish(steps.size())) {
            announced.fetch_add(1);
          }
        } else if (announced.load() >= tag) {
          ++tag;
        } else {
          std::this_thread::yield();
        }
      }
    });
  }
  for (int64_t tag = 1; tag <= kTiles; ++tag) {
    OwnSteps own(tile, tag);
    for (Range steps = own.next(kSteps, 4); !steps.empty(); steps = own.next(kSteps, 4)) {
      compute(tag, steps);
      std::this_thread::yield();
    }
    if (own.finish()) {
      announced.fetch_add(1);
    }
    while (announced.load() < tag) {
      std::this_thread::yield();
    }
    EXPECT_EQ(announced.load(), tag);
    for (int64_t i = 0; i < kSteps; ++i) {
      ASSERT_EQ(done[static_cast<size_t>((tag - 1) * kSteps + i)], 1) << tag << ", step " << i;
    }
  }
  for (std::thread& other : others) {
    other.join();
  }
}

}  // namespace
}  // namespace weft
