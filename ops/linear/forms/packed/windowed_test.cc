#include "ops/linear/forms/packed/windowed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

namespace weft::windowed {
namespace {

float value_of(uint32_t bits) {
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
float bf16(uint32_t weight) { return value_of(weight << 16); }
float scale_of(int first) { return value_of(scale_exponent(first) << 23); }

/// Every bf16, at every place of the window: moved, scaled back, it is itself.
TEST(Windowed, WeightsInTheWindowComeBack) {
  for (int first = kLeastFirst; first <= kMostFirst; ++first) {
    int in = 0;
    for (uint32_t weight = 0; weight <= 0xffff; ++weight) {
      if (in_window(weight, first)) {
        ++in;
        const uint32_t moved = move_to_window(weight, first);
        ASSERT_EQ(bf16(moved) * scale_of(first), bf16(weight)) << weight << " at " << first;
        ASSERT_EQ(moved & ~(0xffu | kHighPart), kWindowBits);
        ASSERT_EQ(move_back(moved, scale_exponent(first)), weight) << " at " << first;
      }
    }
    EXPECT_EQ(in, kWindow * 256);
  }
}

/// What is listed is either itself when it is scaled back, or refused.
TEST(Windowed, OtherWeightsAreListedOrRefused) {
  for (const int first : {kLeastFirst, 20, 96, 111, 200, kMostFirst}) {
    for (uint32_t weight = 0; weight <= 0xffff; ++weight) {
      if (in_window(weight, first)) {
        continue;
      }
      const bool zero = (weight & 0x7fff) == 0;
      const bool normal = bf16_exponent(weight) > 0 && bf16_exponent(weight) < 255;
      if (can_be_listed(weight, first)) {
        ASSERT_TRUE(zero || normal) << weight;
        const double back = static_cast<double>(bf16(move_listed(weight, first))) * scale_of(first);
        ASSERT_EQ(back, bf16(weight)) << weight << " at " << first;
        ASSERT_EQ(move_back(move_listed(weight, first), scale_exponent(first)), weight);
      } else {
        ASSERT_FALSE(zero);
      }
    }
  }
  EXPECT_TRUE(can_be_listed(0x3f80, 100));   // 1: above the window
  EXPECT_TRUE(can_be_listed(0x2000, 110));   // far below
  EXPECT_FALSE(can_be_listed(0x0001, 110));  // not normal
  EXPECT_FALSE(can_be_listed(0x7f80, 110));  // infinite
}

/// The parts of four pairs, put together as the kernel does.
TEST(Windowed, PartsMakeTheWeight) {
  uint32_t random = 1;
  for (int round = 0; round < 1000; ++round) {
    uint32_t pairs[4];
    uint32_t low[2] = {};
    uint32_t high = 0;
    for (int number = 0; number < 4; ++number) {
      uint32_t halves[2];
      for (uint32_t& half : halves) {
        random = random * 1664525u + 1013904223u;
        half = kWindowBits | (random >> 16 & (0xffu | kHighPart));
      }
      pairs[number] = halves[0] | halves[1] << 16;
      low[number / 2] |= (low_part(halves[0]) | low_part(halves[1]) << 8) << (number % 2 * 16);
      ASSERT_EQ(high & high_parts(pairs[number], number), 0u);
      high |= high_parts(pairs[number], number);
    }
    for (int number = 0; number < 4; ++number) {
      const uint32_t bytes = low[number / 2] >> (number % 2 * 16);
      ASSERT_EQ(join_parts(high, number, bytes), pairs[number]);
      // Each half of the word has the high bytes of two weights.
      const uint32_t of_pair = high_bytes(high, number / 2) >> (number % 2 * 16);
      ASSERT_EQ(of_pair & 0xff, pairs[number] >> 8 & 0xff);
      ASSERT_EQ(of_pair >> 8 & 0xff, pairs[number] >> 24);
    }
  }
}

/// The four pairs' high parts fill a word.
TEST(Windowed, HighPartsFillAWord) {
  uint32_t all = 0;
  for (int number = 0; number < 4; ++number) {
    all ^= high_parts(0xffffffff, number);
  }
  EXPECT_EQ(all, 0xffffffff);
}

}  // namespace
}  // namespace weft::windowed
