// How rmsnorm_quant is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/rmsnorm_quant/op.h"

namespace weft::hopper {

Plan plan_rmsnorm_quant(const RmsNormQuantArgs& args, const DeviceInfo& device);
std::vector<Plan> rmsnorm_quant_candidates(const RmsNormQuantArgs& args, const DeviceInfo& device);

}  // namespace weft::hopper
