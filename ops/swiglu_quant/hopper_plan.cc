#include "ops/swiglu_quant/hopper_plan.h"

#include <algorithm>

#include "ops/hopper_row_plan.h"

namespace weft::hopper {

Plan plan_swiglu_quant(const SwigluQuantArgs& args, const DeviceInfo&) {
  if (args.y.out.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  const bool row = args.y.scaling == Scaling::row;
  return {.kernel = "row",
          .threads = std::min(row ? 1024 : 256, threads_for(args.columns, 1)),
          .why = row ? "a block for each row, whose scale needs all of it"
                     : "a thread for each eight numbers or few more"};
}

std::vector<Plan> swiglu_quant_candidates(const SwigluQuantArgs& args, const DeviceInfo&) {
  std::vector<Plan> plans;
  if (args.y.out.dtype != DType::e4m3fnuz) {
    for (const int threads : {128, 256, 512, 1024}) {
      const Plan plan{.kernel = "row", .threads = std::min(threads, threads_for(args.columns, 1))};
      if (std::find(plans.begin(), plans.end(), plan) == plans.end()) {
        plans.push_back(plan);
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper
