// gemm_fp8_blockwise on sm_90a, the host's side; and the kernel that turns mn_major operands into
// k_major ones, because the tensor cores take fp8 no other way.
#include <algorithm>

#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/check_operands.h"
#include "ops/gemm_fp8_blockwise/hopper_plan.h"
#include "ops/gemm_fp8_blockwise/hopper_tile.cuh"

namespace weft::hopper {
namespace {

/// A matrix [k, rows] of bytes, and where [rows, k] goes.
struct Turned {
  const uint8_t* from = nullptr;
  int64_t stride = 0;
  uint8_t* to = nullptr;
  int rows = 0;
};
constexpr int kTurnRows = 128;
constexpr int kTurnThreads = 256;

/// Block (x, y, z) turns 128 elements of k by 128 rows of matrix z.
__global__ void __launch_bounds__(kTurnThreads) turn(Turned a, Turned b, int k) {
  begin_in_turn();
  __shared__ __align__(16) uint8_t tile[kTurnRows * kFp8Block];
  const Turned matrix = blockIdx.z == 0 ? a : b;
  const int first_k = blockIdx.x * kFp8Block;
  const int first_row = blockIdx.y * kTurnRows;
  if (first_row >= matrix.rows) {
    return;
  }
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  // 4 x 4 bytes a thread and step: four words along rows become four along k. A warp has 8 such
  // pieces along rows and 4 along k, which fill one 16-byte chunk of k; chunks are swizzled, so
  // that a warp's words are in different banks.
  constexpr int kSteps = 4;
  uint32_t words[kSteps][4] = {};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int row = first_row + (step * 8 + lane % 8) * 4;
    const uint8_t* from = matrix.from + (first_k + warp * 16 + lane / 8 * 4) * matrix.stride + row;
#pragma unroll
    for (int i = 0; i < 4; ++i, from += matrix.stride) {
      if (row + 4 <= matrix.rows) {
        words[step][i] = *reinterpret_cast<const uint32_t*>(from);
      } else {
        for (int j = 0; row + j < matrix.rows; ++j) {
          words[step][i] |= static_cast<uint32_t>(from[j]) << (8 * j);
        }
      }
    }
  }
  const auto chunk = [&](int row, int at) {
    return tile + row * kFp8Block + ((at ^ (row / 4)) & 7) * 16;
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const auto& w = words[step];
    const uint32_t low01 = __byte_perm(w[0], w[1], 0x5140);
    const uint32_t low23 = __byte_perm(w[2], w[3], 0x5140);
    const uint32_t high01 = __byte_perm(w[0], w[1], 0x7362);
    const uint32_t high23 = __byte_perm(w[2], w[3], 0x7362);
    const uint32_t turned[4] = {
        __byte_perm(low01, low23, 0x5410), __byte_perm(low01, low23, 0x7632),
        __byte_perm(high01, high23, 0x5410), __byte_perm(high01, high23, 0x7632)};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int row = (step * 8 + lane % 8) * 4 + j;
      *reinterpret_cast<uint32_t*>(chunk(row, warp) + lane / 8 * 4) = turned[j];
    }
  }
  __syncthreads();
#pragma unroll
  for (int piece = threadIdx.x; piece < kTurnRows * kFp8Block / 16; piece += kTurnThreads) {
    const int row = piece / (kFp8Block / 16);
    const int at = piece % (kFp8Block / 16);
    if (first_row + row < matrix.rows) {
      *reinterpret_cast<uint4*>(matrix.to + static_cast<int64_t>(first_row + row) * k + first_k +
                                at * 16) = *reinterpret_cast<const uint4*>(chunk(row, at));
    }
  }
}

Status launch_turn(const GemmFp8BlockwiseArgs& args, ConstMatrix& a, ConstMatrix& b,
                   cudaStream_t stream) {
  const Fp8Workspace places = fp8_workspace(args);
  WEFT_TRY(check_workspace("gemm_fp8_blockwise", args.workspace.bytes, places.bytes));
  auto* memory = static_cast<uint8_t*>(args.workspace.data);
  const auto turned = [&](const ConstMatrix& matrix, size_t place, int64_t rows) {
    return Turned{.from = static_cast<const uint8_t*>(matrix.data),
                  .stride = matrix.stride,
                  .to = memory + place,
                  .rows = static_cast<int>(rows)};
  };
  const int64_t most = args.m > args.n ? args.m : args.n;
  a = {memory + places.a, args.a.dtype, args.k};
  b = {memory + places.b, args.b.dtype, args.k};
  return launch_kernel(turn,
                       {.blocks = static_cast<int>(args.k / kFp8Block),
                        .blocks_y = static_cast<int>((most + kTurnRows - 1) / kTurnRows),
                        .blocks_z = 2,
                        .threads = kTurnThreads,
                        .overlaps = true,
                        .stream = stream},
                       turned(args.a, places.a, args.m), turned(args.b, places.b, args.n),
                       static_cast<int>(args.k));
}

template <class Tile, class Schedule>
Status launch_tile(const GemmFp8BlockwiseArgs& args, const ConstMatrix& a_k_major,
                   const ConstMatrix& b_k_major, const Schedule& schedule, cudaStream_t stream) {
  static_assert(!Schedule::kGrouped || kGroupRows % Tile::m == 0);
  const auto operand = [&](const ConstMatrix& matrix, int64_t rows, int box_rows,
                           int64_t matrices) {
    return row_boxes({.data = matrix.data,
                      .format = MapFormat::u8,
                      .rows = rows,
                      .columns = args.k,
                      .stride_bytes = matrix.stride,
                      .box_rows = box_rows,
                      .box_columns = kFp8Block},
                     matrices);
  };
  WEFT_ASSIGN(const RowBoxes a, operand(a_k_major, args.m, Tile::a_rows, 1));
  WEFT_ASSIGN(const RowBoxes b,
              operand(b_k_major, args.n, Tile::b_rows, std::max<int64_t>(args.groups, 1)));
  WEFT_ASSIGN(const CUtensorMap out,
              out_map<kStagedColumns<Tile>>(args.out.data, args.m, args.n, args.out.stride));
  BlockScales scales{.a = args.a_scale.data,
                     .a_row = args.a_scale.row_stride,
                     .a_block = args.a_scale.block_stride,
                     .b = args.b_scale.data,
                     .b_row = args.b_scale.row_stride,
                     .b_block = args.b_scale.block_stride,
                     .m = static_cast<int>(args.m),
                     .n_blocks = static_cast<int>((args.n + kFp8Block - 1) / kFp8Block)};
  scales.bulk = bulk_scales(scales);
  return launch_kernel(gemm_fp8_blockwise_tile<Tile, Schedule>,
                       {.blocks = tiles_of(schedule).blocks(),
                        .threads = Tile::threads,
                        .cluster = Tile::cluster,
                        .shared_bytes = Fp8Shared<Tile>::kBytes,
                        .overlaps = true,
                        .stream = stream},
                       a, b, out, schedule, scales,
                       args.constant_b && args.layout == Fp8Layout::k_major && args.groups == 0);
}

size_t workspace(const GemmFp8BlockwiseArgs& args, const Plan&) {
  return fp8_workspace(args).bytes;
}

Status launch(const GemmFp8BlockwiseArgs& args, const Plan& plan, Stream stream) {
  const TileChoice* tile = find_tile(plan, gemm_fp8_tiles(args.groups > 0));
  if (tile == nullptr) {
    return usage_error("gemm_fp8_blockwise has no kernel of the plan " + to_text(plan));
  }
  const auto cuda = static_cast<cudaStream_t>(stream.native);
  ConstMatrix a = args.a;
  ConstMatrix b = args.b;
  if (args.layout == Fp8Layout::mn_major) {
    WEFT_TRY(launch_turn(args, a, b, cuda));
  }
  const TileSchedule tiles = schedule_of(tiled_product(args), *tile, stream.device->info());
  if (!tiles.parts_fit()) {
    return usage_error("gemm_fp8_blockwise cannot cut k as the plan " + to_text(plan) + " says");
  }
#define WEFT_TILE(M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS, CYCLES)                      \
  if (tile->m == M && tile->n == N && tile->cluster == CLUSTER && tile->parts == PARTS) { \
    return launch_tile<                                                                   \
        GemmTile<M, N, WARPGROUPS, CLUSTER, SHARE_A, PARTS, fp8_own_blocks(N, PARTS)>>(   \
        args, a, b, schedule, cuda);                                                      \
  }
  if (args.groups > 0) {
    const GroupedSchedule schedule{
        .tiles = tiles, .group_of = args.group_of, .shift = tile->m < kGroupRows ? 1 : 0};
    WEFT_GEMM_FP8_GROUPED_TILES(WEFT_TILE)
  } else {
    const TileSchedule& schedule = tiles;
    WEFT_GEMM_FP8_TILES(WEFT_TILE)
  }
#undef WEFT_TILE
  return {};
}

}  // namespace

const Kernel<GemmFp8BlockwiseArgs> gemm_fp8_blockwise = {
    plan_gemm_fp8_blockwise, gemm_fp8_blockwise_candidates, workspace, launch};

}  // namespace weft::hopper
