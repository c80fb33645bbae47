#include "ops/mla_decode/hopper_plan.h"

#include <algorithm>

#include "base/divide.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 384;  ///< eight warps that multiply, four for what they read

constexpr int64_t kCounters = kCounterBytes / 4;

/// Units that a device holds at once, a block a multiprocessor: a cluster lies in one group of
/// them, which has 16 to 18.
int units(const DeviceInfo& device, int cluster) {
  const int whole = cluster > 1 ? std::max(1, device.units / 16) * 16 : device.units;
  return std::max(1, whole / cluster);
}

Plan plan_of(const MlaDecodeArgs& args, const DeviceInfo& device, bool few, int rows, int cluster,
             std::string_view why) {
  const auto tiles = static_cast<int>(ceil_div(args.rows(), rows));
  return {.kernel = few ? "few" : "many",
          .tile_m = rows,
          .tile_n = static_cast<int>(kLatentRank),
          .tile_k = few ? 32 : 64,
          .stages = few ? (rows == 16 ? 5 : 4) : 2,
          .splits = std::max(1, units(device, cluster) / tiles),
          .cluster = cluster,
          .threads = kThreads,
          .why = why};
}

/// Whether the counters are enough: one for each sequence, tile of rows and block of a cluster.
bool fits(const MlaDecodeArgs& args, const Plan& plan) {
  return args.batch * ceil_div(args.rows(), plan.tile_m) * plan.cluster <= kCounters;
}

}  // namespace

Plan plan_mla_decode(const MlaDecodeArgs& args, const DeviceInfo& device) {
  const int64_t rows = args.rows();
  if (args.cache.angles != nullptr) {
    return plan_of(args, device, false, 64, 1, "the one kernel that turns keys");
  }
  const bool few = rows <= 32;
  const int tile = !few ? 64 : rows <= 16 ? 16 : 32;
  if (!whole_sequences(args, device)) {
    return plan_of(args, device, few, tile, 1, "all blocks share all keys");
  }
  return args.run ? plan_of(args, device, false, 64, 1, "a run: each block has sequences")
                  : plan_of(args, device, few, tile, 8, "alone: clusters share the keys of one");
}

std::vector<Plan> mla_decode_candidates(const MlaDecodeArgs& args, const DeviceInfo& device) {
  if (whole_sequences(args, device) || args.cache.angles != nullptr) {
    return {plan_mla_decode(args, device)};
  }
  std::vector<Plan> plans;
  for (const int rows : {16, 32, 64}) {
    if (rows > 16 && args.rows() <= rows / 2) {
      continue;
    }
    for (const int cluster : {1, 8}) {
      const Plan plan = plan_of(args, device, rows < 64, rows, cluster, {});
      if (fits(args, plan)) {
        plans.push_back(plan);
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper
