#include "ops/kernel.h"

#include <fmt/format.h>

namespace weft {

std::string to_text(const Plan& plan) {
  std::string text(plan.kernel);
  if (plan.tile_m > 0 || plan.tile_n > 0) {
    text += fmt::format(" {}x{}x{}", plan.tile_m, plan.tile_n, plan.tile_k);
  }
  const auto add = [&](int value, int usual, std::string_view what) {
    if (value != usual) {
      text += fmt::format(", {} {}", value, what);
    }
  };
  add(plan.stages, 0, "stages");
  add(plan.splits, 1, "splits");
  add(plan.cluster, 1, "in a cluster");
  add(plan.threads, 0, "threads");
  if (plan.swapped) {
    text += ", swapped";
  }
  if (!plan.why.empty()) {
    text += fmt::format(" ({})", plan.why);
  }
  return text;
}

const Plan* find_tuned(std::span<const TunedPlan> table, const PlanKey& key,
                       const DeviceInfo& device, double reach) {
  const TunedPlan* above = nullptr;  // the next larger m, or m itself
  const TunedPlan* below = nullptr;
  for (const TunedPlan& row : table) {
    if (row.key.n != key.n || row.key.k != key.k || row.key.format != key.format ||
        row.target != device.target || row.units != device.units) {
      continue;
    }
    const double ratio = static_cast<double>(row.key.m) / static_cast<double>(key.m);
    if (ratio >= 1 && ratio <= reach && (above == nullptr || row.key.m < above->key.m)) {
      above = &row;
    } else if (ratio < 1 && 1 / ratio <= reach && (below == nullptr || row.key.m > below->key.m)) {
      below = &row;
    }
  }
  return above != nullptr ? &above->plan : below != nullptr ? &below->plan : nullptr;
}

Error no_kernel(std::string_view operation, const DeviceInfo& device, std::string_view why) {
  return device_error(
      why.empty()
          ? fmt::format("{} has no {} kernel in this build", operation, name_of(device.arch))
          : fmt::format("{} cannot run on {}: {}", operation, device.id, why));
}

}  // namespace weft
