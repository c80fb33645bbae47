// How gemm_bf16 is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/gemm_bf16/op.h"
#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {

/// The kernels that hopper.cu compiles, a row each: X(m, n, warpgroups, cluster, share_a, cycles).
#define WEFT_GEMM_BF16_TILES(X) \
  X(128, 256, 2, 2, true, 1080) \
  X(128, 256, 2, 1, true, 1090) \
  X(128, 224, 2, 2, true, 960)  \
  X(128, 224, 2, 1, true, 960)  \
  X(128, 192, 2, 2, false, 830) \
  X(128, 192, 2, 1, false, 830) \
  X(128, 128, 2, 2, false, 590) \
  X(128, 128, 2, 1, true, 580)

TiledProduct tiled_product(const GemmBf16Args& args);
std::span<const TileChoice> gemm_bf16_tiles();
Plan plan_gemm_bf16(const GemmBf16Args& args, const DeviceInfo& device);
std::vector<Plan> gemm_bf16_candidates(const GemmBf16Args& args, const DeviceInfo& device);

}  // namespace weft::hopper
