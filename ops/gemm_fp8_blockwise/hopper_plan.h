// How gemm_fp8_blockwise is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {

/// The kernels that hopper.cu compiles, a row each: X(m, n, warpgroups, cluster, share_a, cycles).
/// Cycles as measured on an H200: above what the tensor cores need, because shared memory serves
/// the copies too, and because a warpgroup scales its sums between its products.
#define WEFT_GEMM_FP8_TILES(X)   \
  X(192, 128, 3, 1, true, 920)   \
  X(192, 144, 3, 1, true, 1050)  \
  X(128, 192, 2, 1, false, 980)  \
  X(128, 192, 2, 2, false, 990)  \
  X(256, 128, 2, 1, false, 1220) \
  X(256, 144, 2, 1, true, 1400)  \
  X(256, 112, 2, 1, true, 1150)  \
  X(128, 144, 2, 1, true, 880)   \
  X(128, 128, 2, 1, true, 770)   \
  X(128, 96, 2, 1, true, 680)    \
  X(128, 96, 2, 2, true, 690)    \
  X(64, 96, 1, 1, true, 440)     \
  X(64, 64, 1, 1, true, 370)     \
  X(64, 64, 1, 4, true, 390)

TiledProduct tiled_product(const GemmFp8BlockwiseArgs& args);
std::span<const TileChoice> gemm_fp8_tiles();
Plan plan_gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, const DeviceInfo& device);
std::vector<Plan> gemm_fp8_blockwise_candidates(const GemmFp8BlockwiseArgs& args,
                                                const DeviceInfo& device);
/// Where mn_major operands are turned into k_major ones: offsets into the workspace, past the
/// counters.
struct Fp8Workspace {
  size_t a = 0;
  size_t b = 0;
  size_t bytes = 0;  ///< 0: k_major operands need none
};
Fp8Workspace fp8_workspace(const GemmFp8BlockwiseArgs& args);

}  // namespace weft::hopper
