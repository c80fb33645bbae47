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
  X(192, 128, 3, 1, true, 1, 890)   \
  X(192, 144, 3, 1, true, 1, 1010)  \
  X(256, 128, 2, 1, false, 1, 1260) \
  X(128, 144, 2, 1, true, 1, 720)   \
  X(64, 144, 1, 1, true, 1, 450)    \
  X(64, 96, 1, 1, true, 1, 350)     \
  X(128, 192, 2, 2, true, 2, 890)   \
  X(128, 96, 2, 2, true, 2, 430)    \
  X(64, 144, 1, 2, true, 2, 510)    \
  X(64, 128, 1, 2, true, 2, 440)    \
  X(64, 64, 1, 2, true, 2, 270)     \
  X(64, 64, 1, 4, true, 4, 270)     \
  WEFT_GEMM_FP8_GROUPED_TILES(X)
/// Of these the ones that there are for groups too: none has rows of two of them.
#define WEFT_GEMM_FP8_GROUPED_TILES(X) \
  X(128, 192, 2, 1, false, 1, 900)     \
  X(128, 160, 2, 1, true, 1, 800)      \
  X(128, 128, 2, 1, true, 1, 670)      \
  X(128, 96, 2, 1, true, 1, 540)       \
  X(64, 128, 1, 1, true, 1, 420)       \
  X(64, 64, 1, 1, true, 1, 320)

/// Blocks of k that two parts of a tile leave (TileSchedule::own_blocks): as many as it takes to
/// send the sums. (With one warpgroup that gains nothing.)
constexpr int fp8_own_blocks(int n, int parts) { return parts == 2 && n % 96 == 0 ? 4 : 0; }

TiledProduct tiled_product(const GemmFp8BlockwiseArgs& args);
std::span<const TileChoice> gemm_fp8_tiles(bool grouped);
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
