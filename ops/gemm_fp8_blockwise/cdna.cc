// gemm_fp8_blockwise on AMD, the host's side.
#include "ops/gemm_fp8_blockwise/cdna.h"

#include <algorithm>

#include "ops/cdna_gemm_plan.h"
#include "ops/cdna_launch.h"
#include "ops/gemm_fp8_blockwise/op.h"

namespace weft::cdna {
namespace {

GemmProblem problem_of(const GemmFp8BlockwiseArgs& args) {
  return {.m = args.m, .n = args.n, .blocks = args.k / kScaleBlock, .peak = Peak::fp8};
}

std::string_view why_not(const GemmFp8BlockwiseArgs& args, const DeviceInfo& device) {
  if (const auto why = refuse(args.a.dtype, device); !why.empty()) {
    return why;
  }
  const bool large = args.layout == Fp8Layout::mn_major &&
                     args.k * std::max(args.a.stride, args.b.stride) > int64_t{0xffffffff};
  return large ? "column-major operands of 4 GiB and more are out of a buffer's reach" : "";
}

Plan plan(const GemmFp8BlockwiseArgs& args, const DeviceInfo& device) {
  if (const auto why = why_not(args, device); !why.empty()) {
    return {.why = why};
  }
  return choose_gemm(problem_of(args), device);
}

std::vector<Plan> candidates(const GemmFp8BlockwiseArgs& args, const DeviceInfo& device) {
  return why_not(args, device).empty() ? gemm_candidates(problem_of(args), device)
                                       : std::vector<Plan>();
}

size_t workspace(const GemmFp8BlockwiseArgs& args, const Plan& plan) {
  return gemm_workspace(problem_of(args), plan);
}

Status launch(const GemmFp8BlockwiseArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("gemm_fp8_blockwise", args.workspace, workspace(args, plan)));
  const auto tiles_m = static_cast<int32_t>((args.m + plan.tile_m - 1) / plan.tile_m);
  const auto tiles_n = static_cast<int32_t>((args.n + plan.tile_n - 1) / plan.tile_n);
  const GemmFp8BlockwiseParams params{.a = args.a.data,
                                      .b = args.b.data,
                                      .a_scale = args.a_scale.data,
                                      .b_scale = args.b_scale.data,
                                      .out = args.out.data,
                                      .partial = partial_sums(args.workspace),
                                      .tickets = static_cast<uint32_t*>(args.workspace.data),
                                      .a_stride = stride_bytes(args.a),
                                      .b_stride = stride_bytes(args.b),
                                      .out_stride = stride_bytes(args.out),
                                      .a_scale_row_stride = args.a_scale.row_stride,
                                      .a_scale_block_stride = args.a_scale.block_stride,
                                      .b_scale_row_stride = args.b_scale.row_stride,
                                      .b_scale_block_stride = args.b_scale.block_stride,
                                      .m = static_cast<int32_t>(args.m),
                                      .n = static_cast<int32_t>(args.n),
                                      .k = static_cast<int32_t>(args.k),
                                      .tiles_m = tiles_m,
                                      .tiles_n = tiles_n,
                                      .splits = plan.splits};
  const std::string kernel = fmt::format("gemm_fp8_blockwise_{}_{}x{}",
                                         args.layout == Fp8Layout::k_major ? "k_major" : "mn_major",
                                         plan.tile_m, plan.tile_n);
  return hip_device(stream).launch(
      {.operation = "gemm_fp8_blockwise",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(tiles_m * tiles_n * plan.splits),
       .threads = static_cast<uint32_t>(plan.threads)},
      params, stream.native);
}

}  // namespace

const weft::Kernel<GemmFp8BlockwiseArgs> gemm_fp8_blockwise = {plan, candidates, workspace, launch};

}  // namespace weft::cdna
