// gemm_skinny on sm_90a, the host's side.
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/gemm_skinny/hopper_dealt.cuh"
#include "ops/gemm_skinny/hopper_plan.h"
#include "ops/gemm_skinny/hopper_stream.cuh"
#include "ops/gemm_skinny/hopper_vector.cuh"

namespace weft::hopper {
namespace {

SkinnyScales scales_of(const GemmSkinnyArgs& args) {
  SkinnyScales scales;
  if (args.scaling != Scaling::none) {
    scales.a = args.a_scale.data;
    scales.b = args.b_scale.data;
    if (args.scaling != Scaling::tensor) {
      scales.a_row = args.a_scale.row_stride;
      scales.b_row = args.b_scale.row_stride;
    }
    if (args.scaling == Scaling::block) {
      scales.a_block = args.a_scale.block_stride;
      scales.b_block = args.b_scale.block_stride;
      scales.blocks = true;
    }
  }
  return scales;
}
SkinnyOut out_of(const GemmSkinnyArgs& args) {
  return {.data = args.out.data,
          .stride = args.out.stride,
          .f32 = args.out.dtype == DType::f32,
          .m = static_cast<int>(args.m),
          .n = static_cast<int>(args.n)};
}

template <class Tile>
Status launch_stream(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  constexpr int kBytes = Tile::Format::kBytes;
  const auto operand = [&](const ConstMatrix& matrix, int64_t rows, int box_rows) {
    return tensor_map({.data = matrix.data,
                       .format = kBytes == 1 ? MapFormat::u8 : MapFormat::bf16,
                       .rows = rows,
                       .columns = args.k,
                       .stride_bytes = matrix.stride * kBytes,
                       .box_rows = box_rows,
                       .box_columns = Tile::kElements});
  };
  WEFT_ASSIGN(const CUtensorMap a, operand(args.a, args.m, Tile::kM));
  WEFT_ASSIGN(const CUtensorMap b, operand(args.b, args.n, Tile::kRows));
  const SkinnyShares shares = skinny_shares(args, plan, stream.device->info().units);
  return launch_kernel(gemm_skinny_stream<Tile>,
                       {.blocks = shares.blocks(),
                        .threads = Tile::kThreads,
                        .cluster = shares.cluster,
                        .shared_bytes = Tile::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       a, b, shares, scales_of(args), out_of(args),
                       SkinnyOverlap{.constant_b = args.constant_b, .late = true});
}

template <class Format>
Status launch_format(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  if (plan.tile_m == 16) {
    return plan.tile_n == 64 ? launch_stream<SkinnyTile<Format, 16, 64, 4>>(args, plan, stream)
                             : launch_stream<SkinnyTile<Format, 16, 128, 2>>(args, plan, stream);
  }
  return plan.tile_n == 64 ? launch_stream<SkinnyTile<Format, 32, 64, 4>>(args, plan, stream)
                           : launch_stream<SkinnyTile<Format, 32, 128, 2>>(args, plan, stream);
}

template <class Tile>
Status launch_dealt(const GemmSkinnyArgs& args, Stream stream) {
  constexpr int kBytes = Tile::Format::kBytes;
  // A row is a stack of chunks of kRowBytes.
  const auto operand = [&](const ConstMatrix& matrix, int64_t rows, int box_rows) {
    return tensor_map({.data = matrix.data,
                       .format = kBytes == 1 ? MapFormat::u8 : MapFormat::bf16,
                       .rows = rows,
                       .columns = kRowBytes / kBytes,
                       .stride_bytes = matrix.stride * kBytes,
                       .box_rows = box_rows,
                       .box_columns = kRowBytes / kBytes,
                       .planes = args.k * kBytes / kRowBytes,
                       .plane_bytes = kRowBytes,
                       .box_planes = Tile::kChunks});
  };
  WEFT_ASSIGN(const CUtensorMap a, operand(args.a, args.m, Tile::kM));
  WEFT_ASSIGN(const CUtensorMap b, operand(args.b, args.n, Tile::kRows));
  const bool late = lets_next_begin_late(args, Tile::kRows, Tile::kBytes, stream.device->info());
  return launch_kernel(gemm_skinny_dealt<Tile>,
                       {.blocks = ceil_div(static_cast<int>(args.n), Tile::kRows),
                        .threads = Tile::kThreads,
                        .shared_bytes = Tile::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       a, b, ceil_div(static_cast<int>(args.k), Tile::kElements),
                       ceil_div(static_cast<int>(args.k), static_cast<int>(kScaleBlock)),
                       scales_of(args), out_of(args),
                       SkinnyOverlap{.constant_b = args.constant_b, .late = late});
}

template <class Format, int kM>
Status launch_dealt_rows(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
#define WEFT_TILE(ROWS, CHUNKS, STAGES, WARPS)                                             \
  if (plan.tile_n == ROWS && plan.tile_k == CHUNKS * kRowBytes / Format::kBytes &&         \
      plan.stages == STAGES && plan.threads == WARPS * 32) {                               \
    return launch_dealt<DealtTile<Format, kM, ROWS, CHUNKS, STAGES, WARPS>>(args, stream); \
  }
  WEFT_SKINNY_DEALT(WEFT_TILE)
#undef WEFT_TILE
  return usage_error("gemm_skinny has no kernel of the plan " + to_text(plan));
}

template <class Format>
Status launch_dealt_format(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  if constexpr (Format::kBytes == 2) {
    if (plan.tile_m == 32) {
      return launch_dealt_rows<Format, 32>(args, plan, stream);
    }
  }
  return plan.tile_m == 8 ? launch_dealt_rows<Format, 8>(args, plan, stream)
                          : launch_dealt_rows<Format, 16>(args, plan, stream);
}

template <class Tile>
Status launch_vector(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  constexpr int kBytes = Tile::Format::kBytes;
  const int warps = plan.threads / 32;
  const int row_bytes = static_cast<int>(args.k) * kBytes;
  const VectorOperands operands{.a = static_cast<const char*>(args.a.data),
                                .b = static_cast<const char*>(args.b.data),
                                .b_stride = args.b.stride * kBytes,
                                .row_bytes = row_bytes,
                                .steps = ceil_div(row_bytes, warps * kVectorStep),
                                .once = reads_once(args, stream.device->info()),
                                .constant_b = args.constant_b};
  return launch_kernel(gemm_skinny_vector<Tile>,
                       {.blocks = ceil_div(static_cast<int>(args.n), Tile::kRows),
                        .threads = plan.threads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       operands, scales_of(args), out_of(args));
}

template <class Format, bool kBlocks, int kResident>
Status launch_vector_rows(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  return plan.tile_n == 2
             ? launch_vector<VectorTile<Format, 2, kBlocks, kResident>>(args, plan, stream)
         : plan.tile_n == 4
             ? launch_vector<VectorTile<Format, 4, kBlocks, kResident>>(args, plan, stream)
             : launch_vector<VectorTile<Format, 8, kBlocks, kResident>>(args, plan, stream);
}
template <class Format, bool kBlocks>
Status launch_vector_format(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  return plan.kernel == kVectorKernels[0].name
             ? launch_vector_rows<Format, kBlocks, kVectorKernels[0].resident>(args, plan, stream)
             : launch_vector_rows<Format, kBlocks, kVectorKernels[1].resident>(args, plan, stream);
}

size_t workspace(const GemmSkinnyArgs&, const Plan&) { return 0; }

Status launch(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  if (is_vector(plan)) {
    return args.a.dtype == DType::bf16      ? launch_vector_format<Bf16, false>(args, plan, stream)
           : args.scaling == Scaling::block ? launch_vector_format<E4m3, true>(args, plan, stream)
                                            : launch_vector_format<E4m3, false>(args, plan, stream);
  }
  if (plan.kernel == "dealt") {
    return args.a.dtype == DType::bf16 ? launch_dealt_format<Bf16>(args, plan, stream)
                                       : launch_dealt_format<E4m3>(args, plan, stream);
  }
  return args.a.dtype == DType::bf16 ? launch_format<Bf16>(args, plan, stream)
                                     : launch_format<E4m3>(args, plan, stream);
}

}  // namespace

const Kernel<GemmSkinnyArgs> gemm_skinny = {plan_gemm_skinny, gemm_skinny_candidates, workspace,
                                            launch};

}  // namespace weft::hopper
