#include "arch/cpu/limits.h"

#include <gtest/gtest.h>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/threads.h"

namespace weft::cpu {
namespace {

TEST(Limits, ReadBandwidth) {
  for (int threads = 1; threads <= usable_cpus() && threads <= 3; ++threads) {
    const Result<Rate> rate = read_bandwidth(threads, size_t{64} << 20);
    ASSERT_TRUE(rate.ok());
    EXPECT_GT(rate->median, 1e8);
    EXPECT_GE(rate->best, rate->median);
  }
}

TEST(Limits, Arithmetic) {
  const Rate f32 = f32_peak(1);
  const Rate bf16 = bf16_peak(1);
  EXPECT_GT(f32.median, 1e8);
  EXPECT_GE(f32.best, f32.median);
  if (current_isa() >= Isa::avx512_bf16) {
    EXPECT_GT(bf16.best, f32.best);
  }
}

}  // namespace
}  // namespace weft::cpu
