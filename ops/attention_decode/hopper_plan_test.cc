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

TEST(AttentionDecodePlan, ClustersAreCandidatesForFewJobs) {
  const auto clusters = [](int64_t batch, int64_t head_dim) {
    AttentionDecodeArgs args;
    args.batch = batch;
    args.tokens = 1;
    args.query_heads = 32;
    args.kv_heads = 8;
    args.head_dim = head_dim;
    int most = 1;
    for (const Plan& plan : attention_decode_candidates(args, h200())) {
      EXPECT_LE(plan.splits * plan.cluster, 132);
      most = std::max(most, plan.cluster);
    }
    return most;
  };
  EXPECT_EQ(clusters(1, 128), 8);
  EXPECT_EQ(clusters(8, 64), 4);
  EXPECT_EQ(clusters(32, 128), 1);
  EXPECT_EQ(clusters(1, 256), 1);
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
