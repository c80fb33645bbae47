#include "ops/mla_decode/hopper_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/divide.h"

namespace weft::hopper {
namespace {

DeviceInfo h200() {
  DeviceInfo device;
  device.target = "sm_90a";
  device.arch = Arch::hopper;
  device.units = 132;
  return device;
}

MlaDecodeArgs args_of(int64_t batch, int64_t tokens, int64_t heads) {
  MlaDecodeArgs args;
  args.batch = batch;
  args.tokens = tokens;
  args.heads = heads;
  return args;
}

TEST(MlaDecodePlan, FewRowsAreForMmaAndManyForWgmma) {
  EXPECT_EQ(plan_mla_decode(args_of(128, 1, 16), h200()).tile_m, 16);
  EXPECT_EQ(plan_mla_decode(args_of(64, 2, 16), h200()).tile_m, 32);
  EXPECT_EQ(plan_mla_decode(args_of(128, 1, 128), h200()).kernel, "many");
}

TEST(MlaDecodePlan, AllBlocksShareAllKeys) {
  for (const int64_t batch : {1, 4, 32, 128}) {
    for (const int64_t heads : {16, 128}) {
      const Plan plan = plan_mla_decode(args_of(batch, 1, heads), h200());
      EXPECT_EQ(plan.cluster, 1);
      EXPECT_EQ(plan.splits * ceil_div(heads, plan.tile_m), 132);
    }
  }
}

TEST(MlaDecodePlan, ClustersShareTheKeysOfOneThatIsAlone) {
  MlaDecodeArgs args = args_of(3, 1, 16);
  args.alone = true;
  EXPECT_EQ(plan_mla_decode(args, h200()).cluster, 8);
}

TEST(MlaDecodePlan, LongRunsHaveWholeSequences) {
  MlaDecodeArgs args = args_of(512, 4, 16);
  EXPECT_FALSE(whole_sequences(args, h200()));
  args.run = true;
  EXPECT_TRUE(whole_sequences(args, h200()));
  EXPECT_EQ(plan_mla_decode(args, h200()).why, "a run: each block has sequences");
  args.batch = 100;
  EXPECT_FALSE(whole_sequences(args, h200()));
  args.alone = true;
  EXPECT_TRUE(whole_sequences(args, h200()));
}

TEST(MlaDecodePlan, OneKernelTurnsKeys) {
  MlaDecodeArgs args = args_of(1, 1, 16);
  args.cache.angles = &args;
  const auto plans = mla_decode_candidates(args, h200());
  ASSERT_EQ(plans.size(), 1);
  EXPECT_EQ(plans[0], plan_mla_decode(args, h200()));
  EXPECT_EQ(plans[0].kernel, "many");
  EXPECT_EQ(plans[0].cluster, 1);
}

TEST(MlaDecodePlan, NoPlanNeedsMoreBlocksThanMultiprocessorsOrMoreCounters) {
  for (const int64_t batch : {1, 3, 17, 40, 300, 2048}) {
    for (const int64_t heads : {1, 16, 40, 128}) {
      for (const int64_t tokens : {1, 4}) {
        const MlaDecodeArgs args = args_of(batch, tokens, heads);
        std::vector<Plan> plans = mla_decode_candidates(args, h200());
        plans.push_back(plan_mla_decode(args, h200()));
        for (const Plan& plan : plans) {
          const int64_t tiles = ceil_div(args.rows(), plan.tile_m);
          EXPECT_LE(batch * tiles * plan.cluster * 4, static_cast<int64_t>(kCounterBytes))
              << to_text(plan);
          EXPECT_TRUE(plan.splits == 1 || plan.splits * tiles * plan.cluster <= 132)
              << to_text(plan);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::hopper
