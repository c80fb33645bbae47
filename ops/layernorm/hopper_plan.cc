#include "ops/layernorm/hopper_plan.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWarpColumns = 1024;  ///< rows up to this get a warp each

}  // namespace

Plan plan_layernorm(const LayerNormArgs& args, const DeviceInfo& /*device*/) {
  if (args.columns % 8 != 0) {
    return {.why = "columns must be a multiple of 8"};
  }
  return args.columns <= kWarpColumns
             ? Plan{.kernel = "warp", .threads = kThreads, .why = "short rows"}
             : Plan{.kernel = "block", .threads = kThreads, .why = "long rows"};
}

std::vector<Plan> layernorm_candidates(const LayerNormArgs& args, const DeviceInfo& device) {
  if (plan_layernorm(args, device).kernel.empty()) {
    return {};
  }
  return {{.kernel = "warp", .threads = kThreads}, {.kernel = "block", .threads = kThreads}};
}

}  // namespace weft::hopper
