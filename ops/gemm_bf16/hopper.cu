// gemm_bf16 on sm_90a, the host's side.
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/gemm_bf16/hopper_plan.h"
#include "ops/gemm_bf16/hopper_tile.cuh"

namespace weft::hopper {
namespace {

template <class Tile>
Status launch_tile(const GemmBf16Args& args, const TileSchedule& schedule, cudaStream_t stream) {
  const auto operand = [&](const ConstMatrix& matrix, int64_t rows, int box_rows) {
    return row_boxes({.data = matrix.data,
                      .format = MapFormat::bf16,
                      .rows = rows,
                      .columns = args.k,
                      .stride_bytes = matrix.stride * 2,
                      .box_rows = box_rows,
                      .box_columns = kBf16Block});
  };
  WEFT_ASSIGN(const RowBoxes a, operand(args.a, args.m, Tile::a_rows));
  WEFT_ASSIGN(const RowBoxes b, operand(args.b, args.n, Tile::b_rows));
  const bool f32 = args.out.dtype == DType::f32;
  CUtensorMap out = a.whole;  // not read where the result is f32
  if (!f32) {
    WEFT_ASSIGN(out, out_map<kStagedColumns<Tile>>(args.out.data, args.m, args.n, args.out.stride));
  }
  const F32Out out_f32{.data = f32 ? static_cast<float*>(args.out.data) : nullptr,
                       .stride = args.out.stride,
                       .m = static_cast<int>(args.m),
                       .n = static_cast<int>(args.n),
                       .accumulate = args.accumulate};
  return launch_kernel(gemm_bf16_tile<Tile>,
                       {.blocks = schedule.blocks(),
                        .threads = Tile::threads,
                        .cluster = Tile::cluster,
                        .shared_bytes = Bf16Shared<Tile>::kBytes,
                        .overlaps = true,
                        .stream = stream},
                       a, b, out, schedule, out_f32, args.constant_b);
}

size_t workspace(const GemmBf16Args&, const Plan&) { return 0; }

Status launch(const GemmBf16Args& args, const Plan& plan, Stream stream) {
  const TileChoice* tile = find_tile(plan, gemm_bf16_tiles());
  if (tile == nullptr) {
    return usage_error("gemm_bf16 has no kernel of the plan " + to_text(plan));
  }
  const TileSchedule schedule = schedule_of(tiled_product(args), *tile, stream.device->info());
  if (!schedule.parts_fit()) {
    return usage_error("gemm_bf16 cannot cut k as the plan " + to_text(plan) + " says");
  }
  const auto cuda = static_cast<cudaStream_t>(stream.native);
#define WEFT_TILE(M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS, CYCLES)                               \
  if (tile->m == M && tile->n == N && tile->cluster == CLUSTER && tile->parts == PARTS) {          \
    return launch_tile<GemmTile<M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS>>(args, schedule, cuda); \
  }
  WEFT_GEMM_BF16_TILES(WEFT_TILE)
#undef WEFT_TILE
  return {};
}

}  // namespace

const Kernel<GemmBf16Args> gemm_bf16 = {plan_gemm_bf16, gemm_bf16_candidates, workspace, launch};

}  // namespace weft::hopper
