// How gemm_bf16 is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/gemm_bf16/op.h"
#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {

/// The kernels that hopper.cu compiles, a row each: X(m, n, warpgroups, cluster, share_a, parts,
/// cycles).
#define WEFT_GEMM_BF16_TILES(X)    \
  X(64, 32, 1, 1, true, 1, 260)    \
  X(128, 256, 2, 1, true, 1, 1130) \
  X(128, 224, 2, 1, true, 1, 980)  \
  X(128, 192, 2, 2, false, 1, 880) \
  X(128, 192, 2, 1, false, 1, 870) \
  X(128, 160, 2, 1, true, 1, 740)  \
  X(128, 128, 2, 1, true, 1, 600)  \
  X(128, 96, 2, 1, true, 1, 470)   \
  X(128, 64, 2, 1, true, 1, 340)   \
  X(64, 160, 1, 1, true, 1, 400)   \
  X(64, 128, 1, 1, true, 1, 340)   \
  X(64, 96, 1, 1, true, 1, 320)    \
  X(64, 64, 1, 1, true, 1, 300)    \
  X(128, 96, 2, 2, true, 2, 570)   \
  X(128, 64, 2, 2, true, 2, 450)   \
  X(64, 64, 1, 2, true, 2, 290)    \
  X(128, 64, 2, 4, true, 4, 450)   \
  X(64, 64, 1, 4, true, 4, 210)

TiledProduct tiled_product(const GemmBf16Args& args);
std::span<const TileChoice> gemm_bf16_tiles();
Plan plan_gemm_bf16(const GemmBf16Args& args, const DeviceInfo& device);
std::vector<Plan> gemm_bf16_candidates(const GemmBf16Args& args, const DeviceInfo& device);

}  // namespace weft::hopper
