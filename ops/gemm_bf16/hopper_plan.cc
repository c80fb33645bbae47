#include "ops/gemm_bf16/hopper_plan.h"

#include "base/divide.h"

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/gemm_bf16/hopper_table.inc"
};

#define WEFT_TILE(M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS, CYCLES) \
  {M, N, CLUSTER, SHARE_A, PARTS, CYCLES},
constexpr TileChoice kTiles[] = {WEFT_GEMM_BF16_TILES(WEFT_TILE)};
#undef WEFT_TILE

/// Of kTiles the first, with which few rows occupy most multiprocessors where k is not cut. Its
/// cycles are a guess, so nothing else takes it.
constexpr size_t kNarrow = 1;
/// Those that do not cut k come before those that do.
constexpr size_t kWhole = [] {
  size_t count = 0;
  while (kTiles[count].parts == 1) {
    ++count;
  }
  return count;
}();

}  // namespace

TiledProduct tiled_product(const GemmBf16Args& args) {
  constexpr int kBlock = 64;  // 128 bytes
  return {args.m, args.n, static_cast<int>(ceil_div(args.k, kBlock)), kBlock};
}

std::span<const TileChoice> gemm_bf16_tiles() { return kTiles; }

Plan plan_gemm_bf16(const GemmBf16Args& args, const DeviceInfo& device) {
  PlanKey key = plan_key(args);
  key.format = "bf16";  // f32 results want the same tiles
  const TiledProduct product = tiled_product(args);
  const std::span<const TileChoice> tiles(kTiles);
  if (!args.whole_k) {
    return plan_tile(kTuned, key, product, tiles.subspan(kNarrow), device);
  }
  const Plan plan = plan_tile(kTuned, key, product, tiles.first(kWhole), device);
  return plan.splits == 1 ? plan : choose_tile(product, tiles.first(kWhole), device);
}

std::vector<Plan> gemm_bf16_candidates(const GemmBf16Args& args, const DeviceInfo& device) {
  return tile_candidates(tiled_product(args), kTiles, device);
}

}  // namespace weft::hopper
