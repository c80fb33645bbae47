#include "ops/rmsnorm_quant/hopper_plan.h"

#include <algorithm>

#include "ops/hopper_row_plan.h"

namespace weft::hopper {
namespace {

Plan plan_of(const RmsNormQuantArgs& args, int cluster, int threads) {
  return {.kernel = "row",
          .cluster = cluster,
          .threads = std::min(threads, threads_for(args.columns, cluster))};
}

}  // namespace

Plan plan_rmsnorm_quant(const RmsNormQuantArgs& args, const DeviceInfo& device) {
  if (args.y.out.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  // Few rows: several multiprocessors load one. Many: enough blocks beside each other hide the sum.
  const bool few = args.rows * kMostCluster <= device.units && args.columns >= 4096;
  Plan plan = plan_of(args, few ? kMostCluster : 1, args.columns <= 16384 ? 512 : 1024);
  plan.why = few ? "few rows: a cluster of blocks for each" : "a block for each row";
  return plan;
}

std::vector<Plan> rmsnorm_quant_candidates(const RmsNormQuantArgs& args, const DeviceInfo&) {
  std::vector<Plan> plans;
  if (args.y.out.dtype != DType::e4m3fnuz) {
    for (const int cluster : {1, kMostCluster}) {
      for (const int threads : {256, 512, 1024}) {
        const Plan plan = plan_of(args, cluster, threads);
        if (std::find(plans.begin(), plans.end(), plan) == plans.end()) {
          plans.push_back(plan);
        }
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper
