#include "ops/attention_decode/hopper_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::hopper {
namespace {

DeviceInfo h200() {
  DeviceInfo device;
  device.target = "sm_90a";
  device.arch = Arch::hopper;
  device.units = 132;
  return device;
}

TEST(AttentionDecodePlan, RowsAreQueryHeadsTimesTokens) {
  AttentionDecodeArgs args;
  args.batch = 32;
  args.tokens = 1;
  args.query_heads = 32;
  args.kv_heads = 8;
  args.head_dim = 80;
  EXPECT_EQ(decode_row_tiles(args), 1);
  const Plan plan = plan_attention_decode(args, h200());
  EXPECT_EQ(plan.tile_n, 128);
  EXPECT_EQ(plan.splits, 132);
  args.tokens = 4;
  args.kv_heads = 4;
  EXPECT_EQ(decode_row_tiles(args), 2);
}

TEST(AttentionDecodePlan, FewJobsHaveClusters) {
  const auto cluster = [](int64_t batch, int64_t kv_heads, int64_t head_dim, int64_t positions) {
    AttentionDecodeArgs args;
    args.batch = batch;
    args.tokens = 1;
    args.query_heads = 32;
    args.kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.cache.block_rows = positions;
    const Plan plan = plan_attention_decode(args, h200());
    EXPECT_EQ(plan.splits, plan.cluster > 1 ? batch * kv_heads : 132);
    const std::vector<Plan> plans = attention_decode_candidates(args, h200());
    for (const Plan& other : plans) {
      EXPECT_LE(other.splits * other.cluster, 132);
    }
    EXPECT_TRUE(std::any_of(plans.begin(), plans.end(), [&](const Plan& other) {
      return other.cluster == plan.cluster && other.splits == plan.splits;
    }));
    return plan.cluster;
  };
  EXPECT_EQ(cluster(1, 4, 128, 8192), 16);
  EXPECT_EQ(cluster(1, 8, 128, 8192), 8);
  EXPECT_EQ(cluster(3, 8, 64, 8192), 4);
  EXPECT_EQ(cluster(32, 8, 128, 8192), 1);
  EXPECT_EQ(cluster(1, 8, 256, 8192), 1);
  EXPECT_EQ(cluster(1, 4, 128, 1 << 20), 1);
}

TEST(AttentionDecodePlan, SaysWhyItHasNone) {
  AttentionDecodeArgs args;
  args.batch = 4096;
  args.tokens = 1;
  args.query_heads = args.kv_heads = 8;
  args.head_dim = 64;
  const Plan plan = plan_attention_decode(args, h200());
  EXPECT_TRUE(plan.kernel.empty());
  EXPECT_EQ(plan.why, "sequences times KV heads times tiles of 16 rows are more than 16384");
}

}  // namespace
}  // namespace weft::hopper
