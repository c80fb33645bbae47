#include "ops/cdna_gemm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arch/cdna/target.h"
#include "base/divide.h"

namespace weft::cdna {
namespace {

DeviceInfo device_of(Target target) {
  DeviceInfo device;
  device.target = name_of(target);
  device.units = limits_of(target).compute_units;
  return device;
}

struct Shape {
  int64_t m, n, k;
};
/// The challenge's benchmarks: each with m = 1024 and m = 6144.
constexpr int64_t kNk[][2] = {{1536, 7168}, {3072, 1536}, {576, 7168}, {7168, 256}, {7168, 2048},
                              {4608, 7168}, {7168, 2304}, {512, 7168}, {4096, 512}};

TEST(CdnaGemmPlan, ChoosesAmongTheKernels) {
  for (const Target target : kTargets) {
    const DeviceInfo device = device_of(target);
    for (const int64_t m : {1, 31, 64, 96, 128, 257, 1024, 6144}) {
      for (const auto& [n, k] : kNk) {
        const GemmProblem problem{.m = m, .n = n, .blocks = k / 128};
        const Plan plan = choose_gemm(problem, device);
        SCOPED_TRACE(std::string(device.target) + " " + std::to_string(m) + "," +
                     std::to_string(n) + "," + std::to_string(k) + ": " + to_text(plan));
        EXPECT_EQ(plan.kernel, "tile");
        EXPECT_TRUE(std::any_of(std::begin(kGemmTiles), std::end(kGemmTiles), [&](auto& tile) {
          return tile.m == plan.tile_m && tile.n == plan.tile_n;
        }));
        EXPECT_GE(plan.splits, 1);
        EXPECT_LE(plan.splits, problem.blocks);
        const auto all = gemm_candidates(problem, device);
        EXPECT_NE(std::find(all.begin(), all.end(), plan), all.end());
        const int64_t tiles = ceil_div(m, plan.tile_m) * ceil_div(n, plan.tile_n);
        EXPECT_EQ(gemm_workspace(problem, plan),
                  plan.splits == 1
                      ? 0
                      : kCounterBytes + static_cast<size_t>(tiles * plan.splits * plan.tile_m *
                                                            plan.tile_n * 4));
      }
    }
  }
}

/// With m = 6144 the busiest compute unit multiplies at most 1.35 times its fair share.
TEST(CdnaGemmPlan, FillsTheComputeUnitsOfLargeProducts) {
  for (const Target target : kTargets) {
    const DeviceInfo device = device_of(target);
    for (const auto& [n, k] : kNk) {
      const GemmProblem problem{.m = 6144, .n = n, .blocks = k / 128};
      const Plan plan = choose_gemm(problem, device);
      const int64_t tasks =
          ceil_div(problem.m, plan.tile_m) * ceil_div(n, plan.tile_n) * plan.splits;
      const double busiest = static_cast<double>(ceil_div(tasks, device.units) *
                                                 ceil_div(problem.blocks, plan.splits)) *
                             plan.tile_m * plan.tile_n;
      const double fair = static_cast<double>(problem.m * n * problem.blocks) / device.units;
      EXPECT_LE(busiest / fair, 1.35)
          << device.target << " " << n << "," << k << ": " << to_text(plan);
    }
  }
}

TEST(CdnaGemmPlan, NoTileHasRowsOfTwoGroups) {
  const DeviceInfo device = device_of(Target::gfx942);
  for (const int64_t m : {128, 384, 1152, 32768}) {
    const GemmProblem problem{.m = m, .n = 1536, .blocks = 16, .group_rows = 128};
    std::vector<Plan> plans = gemm_candidates(problem, device);
    plans.push_back(choose_gemm(problem, device));
    for (const Plan& plan : plans) {
      EXPECT_EQ(128 % plan.tile_m, 0) << to_text(plan);
    }
  }
}

/// Few tiles, much k: splits keep compute units busy.
TEST(CdnaGemmPlan, SplitsWhereTilesAreFew) {
  const DeviceInfo device = device_of(Target::gfx942);
  const Plan plan = choose_gemm({.m = 64, .n = 576, .blocks = 56}, device);
  EXPECT_GT(plan.splits, 1);
  EXPECT_EQ(choose_gemm({.m = 6144, .n = 4608, .blocks = 56}, device).splits, 1);
}

}  // namespace
}  // namespace weft::cdna
