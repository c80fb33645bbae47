#include "engine/page_pool.h"

#include <gtest/gtest.h>

#include "ops/matrix.h"

namespace weft {
namespace {

std::vector<int32_t> page_of(int32_t token) {
  return std::vector<int32_t>(static_cast<size_t>(kKvPage), token);
}

TEST(PagePool, FindsContentAfterWhatIsBeforeIt) {
  PagePool pool(4);
  const int32_t first = pool.take().page;
  const int32_t second = pool.take().page;
  EXPECT_EQ(pool.publish(first, PagePool::kRoot, page_of(1)), first);
  EXPECT_EQ(pool.publish(second, pool.chain(first), page_of(2)), second);
  EXPECT_EQ(pool.find(PagePool::kRoot, page_of(1)), first);
  EXPECT_EQ(pool.find(pool.chain(first), page_of(2)), second);
  EXPECT_EQ(pool.find(PagePool::kRoot, page_of(2)), PagePool::kNoPage);
  EXPECT_EQ(pool.find(pool.chain(second), page_of(2)), PagePool::kNoPage);
}

TEST(PagePool, MovesAUserToThePageThatIsThere) {
  PagePool pool(2);
  const int32_t first = pool.take().page;
  const int32_t second = pool.take().page;
  pool.publish(first, PagePool::kRoot, page_of(1));
  EXPECT_EQ(pool.publish(second, PagePool::kRoot, page_of(1)), first);
  EXPECT_EQ(pool.available(), 1);
  pool.release(first);
  EXPECT_EQ(pool.used(), 1);
  pool.release(first);
  EXPECT_EQ(pool.used(), 0);
}

TEST(PagePool, ForgetsWhatWasLongestUnused) {
  PagePool pool(3);
  int32_t pages[3];
  for (int32_t i = 0; i < 3; ++i) {
    pages[i] = pool.publish(pool.take().page, PagePool::kRoot, page_of(i));
  }
  pool.release(pages[1]);
  pool.release(pages[0]);
  EXPECT_EQ(pool.cached(), 2);
  EXPECT_EQ(pool.take().page, pages[1]);
  EXPECT_EQ(pool.find(PagePool::kRoot, page_of(1)), PagePool::kNoPage);
  EXPECT_EQ(pool.find(PagePool::kRoot, page_of(0)), pages[0]);
  pool.use(pages[0]);
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.evicted(), 1);
}

TEST(PagePool, ContentsGoOnOutsideAndAreBroughtBack) {
  PagePool pool(1, 2);
  const auto publish = [&](int32_t token, PagePool::Chain before) {
    const PagePool::Taken taken = pool.take();
    pool.release(pool.publish(taken.page, before, page_of(token)));
    return taken;
  };
  EXPECT_EQ(publish(1, PagePool::kRoot).moved_to, PagePool::kNoPage);
  const PagePool::Chain first = pool.chain(1);
  const int32_t outside = publish(2, first).moved_to;
  EXPECT_EQ(pool.find(PagePool::kRoot, page_of(1)), PagePool::kNoPage);
  EXPECT_EQ(pool.find_outside(PagePool::kRoot, page_of(1)), outside);
  EXPECT_NE(publish(3, first).moved_to, outside);
  EXPECT_EQ(pool.outside(), 2);
  // The one that has been longest there makes room, or the other when that one is wanted.
  EXPECT_EQ(publish(4, first).moved_to, outside);
  EXPECT_EQ(pool.find_outside(PagePool::kRoot, page_of(1)), PagePool::kNoPage);

  const int32_t second = pool.find_outside(first, page_of(2));
  ASSERT_NE(second, PagePool::kNoPage);
  const PagePool::Chain chain = pool.chain(second);
  pool.want(second);
  const int32_t page = pool.take().page;
  EXPECT_EQ(pool.find_outside(first, page_of(3)), PagePool::kNoPage);
  pool.bring(second, page);
  EXPECT_EQ(pool.find(first, page_of(2)), page);
  EXPECT_EQ(pool.chain(page), chain);
  EXPECT_EQ(pool.outside(), 1);
  EXPECT_EQ(pool.brought(), 1);
}

TEST(PagePool, WhatIsComputedAnewIsNoLongerOutside) {
  PagePool pool(1, 1);
  pool.release(pool.publish(pool.take().page, PagePool::kRoot, page_of(1)));
  const PagePool::Chain chain = pool.chain(1);
  const int32_t page = pool.take().page;
  EXPECT_EQ(pool.outside(), 1);
  EXPECT_EQ(pool.publish(page, PagePool::kRoot, page_of(1)), page);
  EXPECT_EQ(pool.chain(page), chain);
  EXPECT_EQ(pool.outside(), 0);
}

TEST(PagePool, FindsTheLongestCommonBeginning) {
  PagePool pool(2);
  std::vector<int32_t> near = page_of(5);
  near[40] = 6;
  const int32_t far = pool.publish(pool.take().page, PagePool::kRoot, page_of(6));
  const int32_t best = pool.publish(pool.take().page, PagePool::kRoot, near);
  const auto found = pool.find_beginning(PagePool::kRoot, page_of(5));
  EXPECT_EQ(found.page, best);
  EXPECT_EQ(found.tokens, 40);
  EXPECT_EQ(pool.find_beginning(pool.chain(far), page_of(5)).tokens, 0);
}

}  // namespace
}  // namespace weft
