#include "ops/gemm_fp8_blockwise/hopper_plan.h"

#include "base/divide.h"

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/gemm_fp8_blockwise/hopper_table.inc"
};

#define WEFT_TILE(M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS, CYCLES) \
  {M, N, CLUSTER, SHARE_A, PARTS, CYCLES, fp8_own_blocks(N, PARTS)},
constexpr TileChoice kTiles[] = {WEFT_GEMM_FP8_TILES(WEFT_TILE)};
constexpr TileChoice kGroupedTiles[] = {WEFT_GEMM_FP8_GROUPED_TILES(WEFT_TILE)};
#undef WEFT_TILE

constexpr std::string_view kNoFnuz = "sm_90a multiplies e4m3fn, not e4m3fnuz";

}  // namespace

TiledProduct tiled_product(const GemmFp8BlockwiseArgs& args) {
  return {args.m, args.n, static_cast<int>(args.k / kScaleBlock), static_cast<int>(kScaleBlock)};
}

std::span<const TileChoice> gemm_fp8_tiles(bool grouped) {
  return grouped ? std::span<const TileChoice>(kGroupedTiles) : kTiles;
}

Plan plan_gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, const DeviceInfo& device) {
  if (args.a.dtype != DType::e4m3fn) {
    return {.why = kNoFnuz};
  }
  PlanKey key = plan_key(args);
  if (args.groups == 0) {
    key.format = "e4m3fn,k-major";  // mn_major operands are turned first; the product is the same
  }
  return plan_tile(kTuned, key, tiled_product(args), gemm_fp8_tiles(args.groups > 0), device);
}

std::vector<Plan> gemm_fp8_blockwise_candidates(const GemmFp8BlockwiseArgs& args,
                                                const DeviceInfo& device) {
  if (args.a.dtype != DType::e4m3fn) {
    return {};
  }
  return tile_candidates(tiled_product(args), gemm_fp8_tiles(args.groups > 0), device);
}

Fp8Workspace fp8_workspace(const GemmFp8BlockwiseArgs& args) {
  if (args.layout == Fp8Layout::k_major) {
    return {};
  }
  Fp8Workspace places{.a = kCounterBytes};
  places.b = places.a + round_up(static_cast<size_t>(args.m * args.k), 256);
  places.bytes = places.b + round_up(static_cast<size_t>(args.n * args.k), 256);
  return places;
}

}  // namespace weft::hopper
