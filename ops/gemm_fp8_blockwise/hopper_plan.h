// How gemm_fp8_blockwise is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {

/// The kernels that hopper.cu compiles, a row each: X(m, n, warpgroups, cluster, share_a, parts,
/// cycles). Cycles as measured on an H200: above what the tensor cores need, because shared memory
/// serves the copies too, and because a warpgroup scales its sums between its products.
#define WEFT_GEMM_FP8_TILES(X)      \
  X(192, 128, 3, 1, true, 1, 870)   \
  X(192, 144, 3, 1, true, 1, 980)   \
  X(128, 192, 2, 1, false, 1, 900)  \
  X(256, 128, 2, 1, false, 1, 1230) \
  X(256, 144, 2, 1, true, 1, 1470)  \
  X(256, 112, 2, 1, true, 1, 1180)  \
  X(128, 144, 2, 1, true, 1, 730)   \
  X(128, 128, 2, 1, true, 1, 700)   \
  X(128, 96, 2, 1, true, 1, 590)    \
  X(64, 96, 1, 1, true, 1, 380)     \
  X(64, 64, 1, 1, true, 1, 330)     \
  X(128, 192, 2, 2, true, 2, 970)   \
  X(128, 96, 2, 2, true, 2, 630)    \
  X(128, 64, 2, 2, true, 2, 540)    \
  X(64, 64, 1, 2, true, 2, 370)     \
  X(64, 64, 1, 4, true, 4, 450)

/// Blocks of k that two parts of a tile leave (TileSchedule::own_blocks): as many as it takes to
/// send the sums. (With tiles of 64 columns that gains nothing.)
constexpr int fp8_own_blocks(int n, int parts) { return parts == 2 && n % 96 == 0 ? 4 : 0; }

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
