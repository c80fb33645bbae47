#include "sim/hopper/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace weft::ptx {
namespace {

uint64_t address(const void* data) { return reinterpret_cast<uint64_t>(data); }

TEST(PtxMemory, AnAllocationIsAccessibleToItsLastByteAndItsSurroundingsAreNot) {
  for (const size_t bytes : {size_t{1}, size_t{255}, size_t{256}, size_t{4096}, size_t{1000003}}) {
    auto* const data = static_cast<unsigned char*>(allocate_memory(bytes));
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(address(data) % kGranule, 0u);
    EXPECT_TRUE(std::all_of(data, data + bytes, [](unsigned char c) { return c == 0xff; }));
    EXPECT_TRUE(accessible(address(data), bytes));
    EXPECT_TRUE(accessible(address(data) + bytes - 1, 1));
    EXPECT_FALSE(accessible(address(data), bytes + 1));
    EXPECT_FALSE(accessible(address(data) + bytes, 1));
    EXPECT_FALSE(accessible(address(data) - 1, 1));
    EXPECT_FALSE(accessible(address(data) - 1, 2));
    EXPECT_TRUE(free_memory(data));
    EXPECT_FALSE(accessible(address(data), 1));
  }
}

TEST(PtxMemory, WhatIsNotOfItIsNotAccessible) {
  int local = 0;
  void* const data = allocate_memory(16);
  EXPECT_FALSE(accessible(address(&local), 4));
  EXPECT_FALSE(accessible(0, 1));
  EXPECT_FALSE(accessible(~uint64_t{0}, 1));
  EXPECT_FALSE(accessible(memory_map.base + memory_map.bytes - 1, 2));
  EXPECT_FALSE(free_memory(&local));
  EXPECT_FALSE(free_memory(static_cast<char*>(data) + 1));
  EXPECT_TRUE(free_memory(data));
  EXPECT_FALSE(free_memory(data));
}

TEST(PtxMemory, NoTwoAllocationsTouchAndAddressesAreNotSoonUsedAgain) {
  const size_t before = allocated_memory();
  void* const first = allocate_memory(4096);
  void* const second = allocate_memory(4096);
  EXPECT_GE(address(second), address(first) + 4096 + 4096);
  EXPECT_EQ(allocated_memory(), before + 8192);
  EXPECT_TRUE(free_memory(first));
  void* const third = allocate_memory(4096);
  EXPECT_GT(address(third), address(second));
  EXPECT_TRUE(free_memory(second));
  EXPECT_TRUE(free_memory(third));
  EXPECT_EQ(allocated_memory(), before);
  EXPECT_EQ(allocate_memory(total_memory() + 1), nullptr);
}

}  // namespace
}  // namespace weft::ptx
