#include "ops/gemm_skinny/hopper_plan.h"

#include <algorithm>
#include <iterator>

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/gemm_skinny/hopper_table.inc"
};

constexpr std::string_view kNoFnuz = "sm_90a multiplies e4m3fn, not e4m3fnuz";
/// As many blocks draw all of the memory's bandwidth: 128 KiB under way in each are what it takes
/// to hide 1.3 us at 4.4 TB/s.
constexpr int kEnoughBlocks = 48;

/// Blocks that may share groups; each has two places for sums in the workspace.
constexpr int kMostBlocks = 256;
/// A group that blocks share has a counter.
constexpr int64_t kMostShared = kCounterBytes / 4;

int64_t groups_of(const GemmSkinnyArgs& args, int rows) { return (args.n + rows - 1) / rows; }

/// splits: 1: whole groups; 2: equal shares of all stages, whatever groups they cut.
Plan plan_of(const GemmSkinnyArgs& args, int rows, int row_bytes, int splits) {
  return {.kernel = "stream",
          .tile_m = args.m <= 16 ? 16 : 32,
          .tile_n = rows,
          .tile_k = args.a.dtype == DType::bf16 ? row_bytes / 2 : row_bytes,
          .splits = splits};
}

}  // namespace

SkinnyShares skinny_shares(const GemmSkinnyArgs& args, const Plan& plan, int blocks) {
  SkinnyShares shares{.groups = static_cast<int>(groups_of(args, plan.tile_n)),
                      .stages_of_k = static_cast<int>((args.k + plan.tile_k - 1) / plan.tile_k),
                      .whole = plan.splits == 1,
                      .k_blocks = static_cast<int>((args.k + kScaleBlock - 1) / kScaleBlock)};
  shares.blocks = std::min({blocks, kMostBlocks, shares.whole ? shares.groups : shares.units()});
  return shares;
}

Plan plan_gemm_skinny(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (args.a.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  if (const Plan* tuned = find_tuned(kTuned, plan_key(args), device); tuned != nullptr) {
    Plan plan = *tuned;
    plan.tile_m = args.m <= 16 ? 16 : 32;  // the row may be another m's
    plan.why = "measured";
    return plan;
  }
  const bool many = groups_of(args, 128) >= device.units;
  Plan plan = plan_of(args, many && args.a.dtype != DType::bf16 ? 128 : 64,
                      many && args.a.dtype != DType::bf16 ? 256 : 512,
                      groups_of(args, 64) >= kEnoughBlocks ? 1 : 2);
  plan.why = plan.splits == 1 ? "enough groups of rows to draw the memory's bandwidth"
                              : "few groups of rows: blocks share them";
  return plan;
}

std::vector<Plan> gemm_skinny_candidates(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  (void)device;
  std::vector<Plan> plans;
  if (args.a.dtype != DType::e4m3fnuz) {
    for (const int splits : {1, 2}) {
      if (splits == 2 && groups_of(args, 64) > kMostShared) {
        break;
      }
      plans.push_back(plan_of(args, 64, 512, splits));
      plans.push_back(plan_of(args, 128, 256, splits));
    }
  }
  return plans;
}

size_t gemm_skinny_plan_workspace(const GemmSkinnyArgs& args, const Plan& plan) {
  (void)args;
  return plan.splits == 1
             ? 0
             : kCounterBytes + size_t{2} * kMostBlocks * plan.tile_m * plan.tile_n * sizeof(float);
}

}  // namespace weft::hopper
