#include "ops/hopper_gemm_plan.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <utility>

#include "base/divide.h"

namespace weft::hopper {
namespace {

// In cycles, from the times of all tiles on an H200 for 224 shapes: storing an element of the
// result, which takes as long as its way to memory, and adding up the parts of k through the
// cluster's shared memory.
constexpr double kStore = 0.08;
constexpr double kGather = 4000;

int tiles_of(int64_t size, int tile) { return static_cast<int>(ceil_div(size, tile)); }

Plan plan_of(const TiledProduct& product, const TileChoice& tile) {
  return {.kernel = "tile",
          .tile_m = tile.m,
          .tile_n = tile.n,
          .tile_k = product.tile_k,
          .splits = tile.parts,
          .cluster = tile.cluster};
}

double cycles_of(const TileSchedule& schedule, const TileChoice& tile) {
  const double k_blocks = static_cast<double>(schedule.k_blocks) / schedule.parts;
  return schedule.rounds() * (k_blocks * tile.cycles + kStore * tile.m * tile.n) +
         (schedule.parts > 1 ? kGather : 0);
}

/// Rows of super tiles that are visited together, so that the tiles that are at work at once read
/// the fewest rows of a and b from L2: about as many of the one as of the other.
int band_of(const TileChoice& tile, const DeviceInfo& device) {
  const int sharing = tile.cluster / tile.parts;
  const int along_m = tile.m * (tile.share_a ? 1 : sharing);
  const int along_n = tile.n * (tile.share_a ? sharing : 1);
  const double supers = static_cast<double>(device.units) / tile.cluster;
  int band = 1;
  while (band * band * 2.0 * along_m < supers * along_n) {  // rounds to the nearest power of two
    band *= 2;
  }
  return band;
}

template <class F>
void for_each_plan(const TiledProduct& product, std::span<const TileChoice> tiles,
                   const DeviceInfo& device, const F& f) {
  for (const TileChoice& tile : tiles) {
    const TileSchedule schedule = schedule_of(product, tile, device);
    if (schedule.parts_fit()) {
      f(tile, schedule);
    }
  }
}

}  // namespace

TileSchedule schedule_of(const TiledProduct& product, const TileChoice& tile,
                         const DeviceInfo& device) {
  return {.m_tiles = tiles_of(product.m, tile.m),
          .n_tiles = tiles_of(product.n, tile.n),
          .k_blocks = product.k_blocks,
          .cluster = tile.cluster / tile.parts,
          .share_a = tile.share_a,
          .parts = tile.parts,
          .own_blocks = tile.own_blocks,
          .clusters = std::max(1, resident_clusters(device.units, tile.cluster)),
          .band = band_of(tile, device)};
}

namespace {

Plan cheapest_tile(const TiledProduct& product, std::span<const TileChoice> tiles,
                   const DeviceInfo& device) {
  Plan best;
  double least = 0;
  for_each_plan(product, tiles, device, [&](const TileChoice& tile, const TileSchedule& schedule) {
    const double cycles = cycles_of(schedule, tile);
    if (best.kernel.empty() || cycles < least) {
      least = cycles;
      best = plan_of(product, tile);
    }
  });
  best.why = "the fewest cycles by the model of rounds of tiles";
  return best;
}

}  // namespace

Plan choose_tile(const TiledProduct& product, std::span<const TileChoice> tiles,
                 const DeviceInfo& device) {
  // To choose takes as long as a fifth of a launch, so the thread keeps what it chose.
  const std::tuple key{product.m,    product.n,    product.k_blocks, product.tile_k,
                       tiles.data(), tiles.size(), device.units};
  thread_local std::array<std::pair<std::remove_const_t<decltype(key)>, Plan>, 64> kept;
  const auto hash = static_cast<uint64_t>(product.m * 3 + product.n / 8 * 5 + product.k_blocks * 7);
  auto& [of, plan] = kept[hash % kept.size()];
  if (of != key) {
    plan = cheapest_tile(product, tiles, device);
    of = key;
  }
  return plan;
}

Plan plan_tile(std::span<const TunedPlan> tuned, const PlanKey& key, const TiledProduct& product,
               std::span<const TileChoice> tiles, const DeviceInfo& device) {
  const Plan* measured = find_tuned(tuned, key, device, 1);
  if (measured == nullptr) {
    return choose_tile(product, tiles, device);
  }
  Plan plan = *measured;
  plan.why = "measured";
  return plan;
}

std::vector<Plan> tile_candidates(const TiledProduct& product, std::span<const TileChoice> tiles,
                                  const DeviceInfo& device) {
  std::vector<Plan> plans;
  for_each_plan(product, tiles, device,
                [&](const TileChoice& tile, const TileSchedule& /*schedule*/) {
                  plans.push_back(plan_of(product, tile));
                });
  return plans;
}

const TileChoice* find_tile(const Plan& plan, std::span<const TileChoice> tiles) {
  const auto found = std::find_if(tiles.begin(), tiles.end(), [&](const TileChoice& tile) {
    return tile.m == plan.tile_m && tile.n == plan.tile_n && tile.cluster == plan.cluster &&
           tile.parts == plan.splits;
  });
  return found != tiles.end() ? &*found : nullptr;
}

}  // namespace weft::hopper
