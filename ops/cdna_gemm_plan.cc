#include "ops/cdna_gemm_plan.h"

#include <algorithm>
#include <limits>

#include "arch/cdna/target.h"
#include "base/divide.h"

namespace weft::cdna {
namespace {

constexpr int64_t kBlockBytes = 128;
constexpr int64_t kMostTickets = kCounterBytes / sizeof(uint32_t);
// To start a workgroup, bring its first block and write its result, in cycles; the L2's and the
// memory's bytes per cycle and compute unit. Round numbers: they weigh plans against each other.
constexpr double kTaskCycles = 2500;
constexpr double kL2BytesPerCycle = 64;
constexpr double kMemoryBytesPerCycle = 8;

int64_t tiles_of(const GemmProblem& problem, const GemmTile& tile) {
  return ceil_div(problem.m, tile.m) * ceil_div(problem.n, tile.n);
}

bool can_take(const GemmProblem& problem, const GemmTile& tile, int splits) {
  return problem.group_rows % tile.m == 0 &&
         (splits == 1 || (splits <= problem.blocks && tiles_of(problem, tile) <= kMostTickets));
}

Plan plan_of(const GemmTile& tile, int splits, std::string_view why) {
  return {.kernel = "tile",
          .tile_m = tile.m,
          .tile_n = tile.n,
          .tile_k = static_cast<int>(kBlockBytes),
          .stages = 2,
          .splits = splits,
          .threads = 256,
          .why = why};
}

}  // namespace

double gemm_cycles(const GemmProblem& problem, const GemmTile& tile, int splits,
                   const DeviceInfo& device) {
  const auto target = target_named(device.target);
  const Limits limits = limits_of(target.value_or(Target::gfx942));
  const double units = std::max(device.units, 1);
  const double block_elements = problem.peak == Peak::bf16 ? kBlockBytes / 2 : kBlockBytes;
  const double peak = problem.peak == Peak::bf16 ? limits.bf16_flops : limits.fp8_flops;
  const double flops_per_cycle = peak / limits.compute_units / limits.clock;
  const double matrix = 2.0 * tile.m * tile.n * block_elements / flops_per_cycle;
  const double wave_rows =
      static_cast<double>(tile.m) * tile.waves_n + static_cast<double>(tile.n) * tile.waves_m;
  const double moved = static_cast<double>(tile.m + tile.n) * kBlockBytes;
  const double lds = wave_rows * kBlockBytes / static_cast<double>(limits.lds_read_per_cycle) +
                     moved / static_cast<double>(limits.lds_write_per_cycle);
  const double block = std::max({matrix, lds, moved / kL2BytesPerCycle});
  const auto tasks = static_cast<double>(tiles_of(problem, tile) * splits);
  const double rounds = std::max(
      1.0, static_cast<double>(ceil_div(static_cast<int64_t>(tasks), static_cast<int64_t>(units))));
  const double sums = splits == 1 ? 0 : 2.0 * 4 * tile.m * tile.n / kMemoryBytesPerCycle;
  const auto blocks = static_cast<double>(ceil_div(problem.blocks, splits));
  return rounds * (blocks * block + kTaskCycles + sums);
}

Plan choose_gemm(const GemmProblem& problem, const DeviceInfo& device) {
  Plan best;
  double least = std::numeric_limits<double>::infinity();
  for (const GemmTile& tile : kGemmTiles) {
    for (int splits = 1; splits <= 16 && can_take(problem, tile, splits); ++splits) {
      const double cycles = gemm_cycles(problem, tile, splits, device);
      if (cycles < least) {
        least = cycles;
        best = plan_of(tile, splits, "the least cycles by the model of gemm_cycles()");
      }
    }
  }
  return best;
}

std::vector<Plan> gemm_candidates(const GemmProblem& problem, const DeviceInfo& device) {
  std::vector<Plan> plans;
  for (const GemmTile& tile : kGemmTiles) {
    int64_t rounds_of_blocks = std::numeric_limits<int64_t>::max();
    for (int splits = 1; splits <= 16 && can_take(problem, tile, splits); ++splits) {
      const int64_t rounds = ceil_div(tiles_of(problem, tile) * splits, std::max(device.units, 1));
      const int64_t longest = rounds * ceil_div(problem.blocks, splits);
      if (longest < rounds_of_blocks) {
        rounds_of_blocks = longest;
        plans.push_back(plan_of(tile, splits, {}));
      }
    }
  }
  return plans;
}

size_t gemm_workspace(const GemmProblem& problem, const Plan& plan) {
  if (plan.splits == 1) {
    return 0;
  }
  const int64_t tiles = ceil_div(problem.m, plan.tile_m) * ceil_div(problem.n, plan.tile_n);
  return kCounterBytes +
         static_cast<size_t>(tiles * plan.splits * plan.tile_m * plan.tile_n) * sizeof(float);
}

}  // namespace weft::cdna
