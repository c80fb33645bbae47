// How matrix products are cut into tiles on sm_90a (arch/hopper/tile_schedule.h): what gemm_bf16
// and gemm_fp8_blockwise share. Pure functions of shape and device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "arch/hopper/tile_schedule.h"
#include "ops/kernel.h"

namespace weft::hopper {

/// A kernel that is compiled. Plans name it by its tile, cluster and parts, which no two have in
/// common.
struct TileChoice {
  int m = 0;
  int n = 0;
  int cluster = 1;
  bool share_a = true;  ///< see GemmTile
  int parts = 1;        ///< of k: a plan's splits
  int cycles = 0;       ///< that a tile takes for a block of k, about, everything busy
  int own_blocks = 0;   ///< see TileSchedule
};

struct TiledProduct {
  int64_t m = 0;
  int64_t n = 0;
  int k_blocks = 0;
  int tile_k = 0;  ///< elements of k in a block: what plans say
};

/// Clusters of a size that are resident at once: with four blocks and more they do not fill every
/// group of multiprocessors. Groups differ in size, from chip to chip too: of an H200's 132, 30
/// clusters of 4 were resident, 14 or 15 of 8, 6 or 7 of 16.
constexpr int resident_clusters(int units, int cluster) {
  return cluster == 16  ? units / 22
         : cluster == 8 ? units / 9
         : cluster == 4 ? units * 10 / 44
                        : units / cluster;
}

TileSchedule schedule_of(const TiledProduct& product, const TileChoice& tile,
                         const DeviceInfo& device);

/// The plan with the least time by TileChoice::cycles: rounds of tiles, what the last one leaves
/// idle counted.
Plan choose_tile(const TiledProduct& product, std::span<const TileChoice> tiles,
                 const DeviceInfo& device);
/// What was measured for this very shape, else choose_tile(), which errs less than a table's row
/// for other rows does.
Plan plan_tile(std::span<const TunedPlan> tuned, const PlanKey& key, const TiledProduct& product,
               std::span<const TileChoice> tiles, const DeviceInfo& device);
/// Every tile that fits: those that cut k are for one round of them.
std::vector<Plan> tile_candidates(const TiledProduct& product, std::span<const TileChoice> tiles,
                                  const DeviceInfo& device);
/// The tile that a plan names, or null. It may not fit the product.
const TileChoice* find_tile(const Plan& plan, std::span<const TileChoice> tiles);

}  // namespace weft::hopper
