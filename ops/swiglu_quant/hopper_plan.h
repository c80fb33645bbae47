// How swiglu_quant is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/swiglu_quant/op.h"

namespace weft::hopper {

Plan plan_swiglu_quant(const SwigluQuantArgs& args, const DeviceInfo& device);
std::vector<Plan> swiglu_quant_candidates(const SwigluQuantArgs& args, const DeviceInfo& device);

}  // namespace weft::hopper
