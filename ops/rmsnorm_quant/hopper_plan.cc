#include "ops/rmsnorm_quant/hopper_plan.h"

#include <algorithm>

#include "ops/hopper_row_plan.h"

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/rmsnorm_quant/hopper_table.inc"
};

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
  if (const Plan* tuned = find_tuned(kTuned, plan_key(args), device); tuned != nullptr) {
    Plan plan = *tuned;
    plan.why = "measured";
    return plan;
  }
  // Few rows: several multiprocessors load one. Many: enough blocks beside each other hide the sum.
  int cluster = kMostCluster;
  while (cluster > 1 && (args.rows * cluster > device.units || args.columns < 512 * cluster)) {
    cluster /= 2;
  }
  Plan plan = plan_of(args, cluster, args.columns <= 16384 ? 512 : 1024);
  plan.why = cluster > 1 ? "few rows: a cluster of blocks for each" : "a block for each row";
  return plan;
}

std::vector<Plan> rmsnorm_quant_candidates(const RmsNormQuantArgs& args, const DeviceInfo&) {
  std::vector<Plan> plans;
  if (args.y.out.dtype != DType::e4m3fnuz) {
    for (int cluster = 1; cluster <= kMostCluster; cluster *= 2) {
      for (const int threads : {128, 256, 512, 1024}) {
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
