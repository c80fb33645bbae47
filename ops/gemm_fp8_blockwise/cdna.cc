// gemm_fp8_blockwise on AMD, the host's side.
#include "ops/gemm_fp8_blockwise/cdna.h"

#include <algorithm>

#include "ops/cdna_gemm_launch.h"
#include "ops/gemm_fp8_blockwise/op.h"

namespace weft::cdna {
namespace {

GemmProblem problem_of(const GemmFp8BlockwiseArgs& args) {
  return {.m = args.m,
          .n = args.n,
          .blocks = args.k / kScaleBlock,
          .peak = Peak::fp8,
          .group_rows = args.groups > 0 ? kGroupRows : 0};
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
  WEFT_ASSIGN(const GemmTask task,
              gemm_task("gemm_fp8_blockwise", args, plan, workspace(args, plan)));
  return launch_gemm("gemm_fp8_blockwise",
                     args.groups > 0                     ? "grouped"
                     : args.layout == Fp8Layout::k_major ? "k_major"
                                                         : "mn_major",
                     plan,
                     GemmFp8BlockwiseParams{.task = task,
                                            .a_scale = args.a_scale.data,
                                            .b_scale = args.b_scale.data,
                                            .a_scale_row_stride = args.a_scale.row_stride,
                                            .a_scale_block_stride = args.a_scale.block_stride,
                                            .b_scale_row_stride = args.b_scale.row_stride,
                                            .b_scale_block_stride = args.b_scale.block_stride,
                                            .group_of = args.group_of},
                     stream);
}

}  // namespace

const weft::Kernel<GemmFp8BlockwiseArgs> gemm_fp8_blockwise = {plan, candidates, workspace, launch};

}  // namespace weft::cdna
