// How layernorm is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/layernorm/op.h"

namespace weft::hopper {

/// "warp": a warp has a row; "block": 256 threads have one.
Plan plan_layernorm(const LayerNormArgs& args, const DeviceInfo& device);
std::vector<Plan> layernorm_candidates(const LayerNormArgs& args, const DeviceInfo& device);

}  // namespace weft::hopper
