#include "arch/cpu/threads.h"

#include <gtest/gtest.h>

namespace weft::cpu {
namespace {

cpu_set_t mask() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

bool equal(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b); }

TEST(Threads, PinnedOnesComeBackToTheirCores) {
  const cpu_set_t before = mask();
  {
    const PinnedThread pinned(0);
    const cpu_set_t one = mask();
    EXPECT_EQ(CPU_COUNT(&one), 1);
    { const PinnedThread again(0); }
    EXPECT_TRUE(equal(one, mask()));
  }
  EXPECT_TRUE(equal(before, mask()));
}

TEST(Threads, WhoKeepsOffWorkersHasTheOtherCores) {
  const cpu_set_t before = mask();
  keep_off_workers(usable_cpus());  // they have all
  EXPECT_TRUE(equal(before, mask()));
  keep_off_workers(1);
  const cpu_set_t rest = mask();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  if (usable_cpus() == 1) {
    GTEST_SKIP() << "this machine has one core";
  }
  EXPECT_EQ(CPU_COUNT(&rest), usable_cpus() - 1);
  const PinnedThread first(0);
  cpu_set_t both;
  const cpu_set_t one = mask();
  CPU_AND(&both, &one, &rest);
  EXPECT_EQ(CPU_COUNT(&both), 0);
}

}  // namespace
}  // namespace weft::cpu
