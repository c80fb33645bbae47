// How moe_layer's products are cut on sm_90a.
#pragma once

#include <vector>

#include "ops/moe_layer/op.h"

namespace weft::hopper {

/// tile_m: rows of an expert's in a block's tile at most, 144 or 192; tile_n: columns of weights;
/// cluster: blocks that share a tile of weights, 1 or 2.
Plan plan_moe_layer(const MoeLayerArgs& args, const DeviceInfo& device);
std::vector<Plan> moe_layer_candidates(const MoeLayerArgs& args, const DeviceInfo& device);

}  // namespace weft::hopper
