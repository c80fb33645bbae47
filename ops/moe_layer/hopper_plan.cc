#include "ops/moe_layer/hopper_plan.h"

#include <cmath>

namespace weft::hopper {
namespace {

constexpr Plan grouped(int rows, int cluster) {
  return {.kernel = "grouped", .tile_m = rows, .tile_n = 256, .tile_k = 64, .cluster = cluster};
}

constexpr int kSmall = 144;  ///< rows of a block's tile

}  // namespace

Plan plan_moe_layer(const MoeLayerArgs& args, const DeviceInfo& /*device*/) {
  // Of a mean drawn at random few experts have more than two deviations besides.
  const double mean =
      static_cast<double>(args.rows * args.chosen) / static_cast<double>(args.experts);
  const bool once = mean + 2 * std::sqrt(mean) <= 2 * kSmall;
  Plan plan = grouped(once ? kSmall : 192, 2);
  plan.why = once ? "an expert's rows are one tile, and tiles about as many as rounds of clusters"
                  : "the least that is read of L2 for a product";
  return plan;
}

std::vector<Plan> moe_layer_candidates(const MoeLayerArgs& /*args*/, const DeviceInfo& /*device*/) {
  return {grouped(192, 2), grouped(kSmall, 2), grouped(192, 1)};
}

}  // namespace weft::hopper
