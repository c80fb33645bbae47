#include "sim/lane_addresses.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>

namespace weft::sim {
namespace {

using Words = std::array<uint32_t, 64>;

Words row(uint32_t begin, uint32_t step) {
  Words words{};
  for (uint32_t l = 0; l < words.size(); ++l) {
    words[l] = begin + l * step;
  }
  return words;
}

constexpr uint64_t kAll = ~uint64_t{0};

TEST(LaneRows, AreFoundWhereLanesAreEquallyFarApart) {
  for (const uint32_t step : {0U, 4U, 8U, 16U, 64U}) {
    for (const uint64_t mask : {kAll, kAll >> 1, kAll << 5, uint64_t{1} << 9}) {
      const Words low = row(256, step);
      Words high{};
      high.fill(3);
      const LaneRow found = row_of(low.data(), high.data(), 1024, mask, 4);
      ASSERT_TRUE(found.describes(mask)) << step;
      std::array<uint64_t, 64> addresses{};
      found.list(addresses.data());
      for (int l = std::countr_zero(mask); l < 64 - std::countl_zero(mask); ++l) {
        const uint64_t expected =
            (uint64_t{3} << 32) + 1024 + 256 + static_cast<uint64_t>(l) * step;
        EXPECT_EQ(found.address(l), expected) << step << ", lane " << l;
        EXPECT_EQ(addresses[static_cast<size_t>(l)], expected) << step << ", lane " << l;
      }
      EXPECT_EQ(found.end, found.address(63 - std::countl_zero(mask)) + 4);
    }
  }
}

TEST(LaneRows, AreNoneWithAGapACarryOrAnotherStep) {
  const Words low = row(256, 4);
  const auto is_row = [](const Words& words, const uint32_t* high, uint64_t base, uint64_t mask,
                         uint64_t bytes) {
    return row_of(words.data(), high, base, mask, bytes).describes(mask);
  };
  EXPECT_TRUE(is_row(low, nullptr, 0, kAll, 4));
  EXPECT_FALSE(is_row(low, nullptr, 0, kAll & ~uint64_t{4}, 4));
  EXPECT_FALSE(is_row(low, nullptr, 0, 0, 4));
  EXPECT_FALSE(is_row(row(256, 4), nullptr, 0, kAll, 8)) << "lanes overlap";
  EXPECT_FALSE(is_row(row(256, 128), nullptr, 0, kAll, 4)) << "whole lines are left out";
  EXPECT_FALSE(is_row(row(256, 12), nullptr, 0, kAll, 4)) << "no power of two";
  EXPECT_FALSE(is_row(row(256, 16), nullptr, 14, kAll, 4)) << "a lane's bytes in two steps";
  EXPECT_FALSE(is_row(row(0xffffff80, 4), nullptr, 0, kAll, 4)) << "the low words carry";
  EXPECT_TRUE(is_row(row(0xffffff00, 4), nullptr, 0, kAll, 4)) << "up to the last word";
  for (const size_t lane : {1UL, 40UL, 63UL}) {
    Words other = low;
    other[lane] += 4;
    EXPECT_FALSE(is_row(other, nullptr, 0, kAll, 4)) << lane;
    Words high{};
    high[lane] = 1;
    EXPECT_FALSE(is_row(low, high.data(), 0, kAll, 4)) << lane;
  }
}

/// `kEach` words of each lane, one lane after the other.
template <size_t kEach>
void go_to_registers_and_back(void (*load)(const void*, uint32_t*),
                              void (*store)(const uint32_t*, void*)) {
  std::array<uint32_t, 64 * kEach> memory{};
  for (uint32_t k = 0; k < memory.size(); ++k) {
    memory[k] = 1000 + k;
  }
  alignas(64) std::array<uint32_t, 64 * kEach> registers{};
  load(memory.data(), registers.data());
  for (uint32_t k = 0; k < kEach; ++k) {
    for (uint32_t l = 0; l < 64; ++l) {
      ASSERT_EQ(registers[64 * k + l], 1000 + kEach * l + k);
    }
  }
  std::array<uint32_t, 64 * kEach> back{};
  store(registers.data(), back.data());
  EXPECT_EQ(back, memory);
}
TEST(LaneRows, QuadsAndPairsGoToRegistersAndBack) {
  go_to_registers_and_back<4>(load_quads, store_quads);
  go_to_registers_and_back<2>(load_pairs, store_pairs);
}

/// A word of each lane, kStep words from one to the next.
template <uint32_t kStep>
void goes_to_a_register_and_back(void (*load)(const void*, uint32_t*),
                                 void (*store)(const uint32_t*, void*)) {
  std::array<uint32_t, 63 * kStep + 1> memory{};  // behind the last word nothing need be
  for (uint32_t k = 0; k < memory.size(); ++k) {
    memory[k] = 1000 + k;
  }
  alignas(64) Words words{};
  load(memory.data(), words.data());
  for (uint32_t l = 0; l < 64; ++l) {
    ASSERT_EQ(words[l], 1000 + kStep * l);
    words[l] = l;
  }
  store(words.data(), memory.data());
  for (uint32_t k = 0; k < memory.size(); ++k) {
    ASSERT_EQ(memory[k], k % kStep == 0 ? k / kStep : 1000 + k);
  }
}
TEST(LaneRows, EveryOtherOrFourthWordGoesToARegisterAndBack) {
  goes_to_a_register_and_back<2>(load_every_other, store_every_other);
  goes_to_a_register_and_back<4>(load_every_fourth, store_every_fourth);
}

}  // namespace
}  // namespace weft::sim
