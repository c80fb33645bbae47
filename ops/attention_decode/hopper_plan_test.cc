#include "ops/attention_decode/hopper_plan.h"

#include <gtest/gtest.h>

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
