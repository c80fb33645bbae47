#include "ops/gemm_skinny/hopper_plan.h"

#include <algorithm>

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/gemm_skinny/hopper_table.inc"
};

constexpr std::string_view kNoFnuz = "sm_90a multiplies e4m3fn, not e4m3fnuz";
/// As many blocks draw all of the memory's bandwidth: 128 KiB under way in each are what it takes
/// to hide 1.3 us at 4.4 TB/s. With as many again, each waits less for its share of a's rows.
constexpr int kEnoughBlocks = 96;
constexpr int kMostCluster = 8;

int64_t groups_of(const GemmSkinnyArgs& args, int rows) { return (args.n + rows - 1) / rows; }

Plan plan_of(const GemmSkinnyArgs& args, int rows, int row_bytes, int cluster) {
  return {.kernel = "stream",
          .tile_m = args.m <= 16 ? 16 : 32,
          .tile_n = rows,
          .tile_k = args.a.dtype == DType::bf16 ? row_bytes / 2 : row_bytes,
          .cluster = cluster};
}

Plan vector_plan(int rows, int warps) {
  return {.kernel = "vector", .tile_m = 1, .tile_n = rows, .threads = warps * 32};
}
int64_t row_bytes(const GemmSkinnyArgs& args) {
  return args.k * (args.a.dtype == DType::bf16 ? 2 : 1);
}

}  // namespace

bool reads_once(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  return args.n * row_bytes(args) < 5 * static_cast<int64_t>(device.l2);
}

SkinnyShares skinny_shares(const GemmSkinnyArgs& args, const Plan& plan, int units) {
  const int groups = static_cast<int>(groups_of(args, plan.tile_n));
  return {.groups = groups,
          .stages_of_k = static_cast<int>((args.k + plan.tile_k - 1) / plan.tile_k),
          .cluster = plan.cluster,
          // Groups of multiprocessors hold no more large clusters than this.
          .clusters = std::min(groups, plan.cluster <= 2   ? units / plan.cluster
                                       : plan.cluster == 4 ? units * 10 / 44
                                                           : units / 9),
          .k_blocks = static_cast<int>((args.k + kScaleBlock - 1) / kScaleBlock)};
}

Plan plan_gemm_skinny(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (args.a.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  if (const Plan* tuned = find_tuned(kTuned, plan_key(args), device); tuned != nullptr) {
    Plan plan = *tuned;  // the row may be another m's
    plan.why = "measured";
    if (plan.kernel == "stream") {
      plan.tile_m = args.m <= 16 ? 16 : 32;
    }
    if (plan.kernel == "stream" || args.m == 1) {
      return plan;
    }
  }
  if (args.m == 1) {
    // A block has whole rows under way, or as much of them as its threads can.
    const bool bf16 = args.a.dtype == DType::bf16;
    int warps = kVectorMostWarps;
    while (warps > 2 && warps * kVectorStep * (bf16 ? 4 : 2) > row_bytes(args)) {
      warps /= 2;
    }
    Plan plan = vector_plan(bf16 ? 2 : 8, warps);
    plan.why = "one row";
    return plan;
  }
  const bool many = groups_of(args, 128) >= device.units;
  int cluster = 1;
  while (cluster < kMostCluster && groups_of(args, 64) * cluster * 2 <= device.units &&
         groups_of(args, 64) * cluster < kEnoughBlocks) {
    cluster *= 2;
  }
  const bool wide = many && args.a.dtype != DType::bf16;
  Plan plan = plan_of(args, wide ? 128 : 64, wide ? 256 : 512, cluster);
  plan.why = cluster == 1 ? "enough groups of rows to draw the memory's bandwidth"
                          : "few groups of rows: clusters share them";
  return plan;
}

std::vector<Plan> gemm_skinny_candidates(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  if (args.a.dtype != DType::e4m3fnuz) {
    for (int rows = 2; args.m == 1 && rows <= 8; rows *= 2) {
      for (int warps = 2; warps <= kVectorMostWarps; warps *= 2) {
        plans.push_back(vector_plan(rows, warps));
      }
    }
    for (int cluster = 1; cluster <= kMostCluster; cluster *= 2) {
      plans.push_back(plan_of(args, 64, 512, cluster));
      if (cluster == 1 || groups_of(args, 128) * cluster <= device.units) {
        plans.push_back(plan_of(args, 128, 256, cluster));
      }
      if (groups_of(args, 64) * cluster > device.units) {
        break;
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper
