#include "ops/swiglu_quant/hopper_plan.h"

#include <algorithm>

#include "ops/hopper_row_plan.h"

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/swiglu_quant/hopper_table.inc"
};

}  // namespace

Plan plan_swiglu_quant(const SwigluQuantArgs& args, const DeviceInfo& device) {
  if (args.y.out.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  if (const Plan* tuned = find_tuned(kTuned, plan_key(args), device); tuned != nullptr) {
    Plan plan = *tuned;
    plan.why = "measured";
    return plan;
  }
  const bool row = args.y.scaling == Scaling::row;
  return {.kernel = "row",
          .threads = std::min(row ? 512 : 256, threads_for(args.columns, 1)),
          .why = row ? "a block for each row, whose scale needs all of it"
                     : "a thread for each eight numbers or few more"};
}

std::vector<Plan> swiglu_quant_candidates(const SwigluQuantArgs& args, const DeviceInfo&) {
  std::vector<Plan> plans;
  if (args.y.out.dtype != DType::e4m3fnuz) {
    for (const int threads : {64, 128, 256, 512, 1024}) {
      const Plan plan{.kernel = "row", .threads = std::min(threads, threads_for(args.columns, 1))};
      if (std::find(plans.begin(), plans.end(), plan) == plans.end()) {
        plans.push_back(plan);
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper
