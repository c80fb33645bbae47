// How the tiled matrix products for AMD (gemm_fp8_blockwise, gemm_bf16) are cut into workgroups:
// pure functions of the problem and the device.
#pragma once

#include <cstdint>
#include <vector>

#include "arch/device.h"
#include "ops/kernel.h"

namespace weft::cdna {

/// The tiles that there are kernels for: KERNELS() in the operations' cdna.hip.
struct GemmTile {
  int m;
  int n;
  int waves_m;  ///< how the four waves share it
  int waves_n;
};
inline constexpr GemmTile kGemmTiles[] = {{128, 128, 2, 2}, {96, 128, 2, 2}, {128, 96, 4, 1},
                                          {64, 128, 2, 2},  {64, 64, 2, 2},  {32, 64, 2, 2}};

struct GemmProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t blocks = 0;  ///< of k, 128 bytes each
  Peak peak = Peak::fp8;
  int64_t group_rows = 0;  ///< where not 0, no tile has rows of two groups of so many
};

/// Cycles that the busiest compute unit takes by a model that knows the matrix units, LDS, the L2's
/// share and the sums that splits leave in memory; for comparing plans, not for telling times.
double gemm_cycles(const GemmProblem& problem, const GemmTile& tile, int splits,
                   const DeviceInfo& device);

/// The plan of the least cycles; Plan::kernel is "tile".
Plan choose_gemm(const GemmProblem& problem, const DeviceInfo& device);
/// Every tile with the splits of k that leave no compute unit with more rounds than fewer would.
std::vector<Plan> gemm_candidates(const GemmProblem& problem, const DeviceInfo& device);
/// Bytes of workspace: tickets and partial sums; 0 without splits.
size_t gemm_workspace(const GemmProblem& problem, const Plan& plan);

}  // namespace weft::cdna
