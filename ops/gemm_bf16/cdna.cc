// gemm_bf16 on AMD, the host's side.
#include "ops/gemm_bf16/cdna.h"

#include "ops/cdna_gemm_plan.h"
#include "ops/cdna_launch.h"
#include "ops/gemm_bf16/op.h"

namespace weft::cdna {
namespace {

GemmProblem problem_of(const GemmBf16Args& args) {
  return {.m = args.m, .n = args.n, .blocks = (args.k + 63) / 64, .peak = Peak::bf16};
}

Plan plan(const GemmBf16Args& args, const DeviceInfo& device) {
  return choose_gemm(problem_of(args), device);
}

std::vector<Plan> candidates(const GemmBf16Args& args, const DeviceInfo& device) {
  return gemm_candidates(problem_of(args), device);
}

size_t workspace(const GemmBf16Args& args, const Plan& plan) {
  return gemm_workspace(problem_of(args), plan);
}

Status launch(const GemmBf16Args& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("gemm_bf16", args.workspace, workspace(args, plan)));
  const auto tiles_m = static_cast<int32_t>((args.m + plan.tile_m - 1) / plan.tile_m);
  const auto tiles_n = static_cast<int32_t>((args.n + plan.tile_n - 1) / plan.tile_n);
  const GemmBf16Params params{.a = args.a.data,
                              .b = args.b.data,
                              .out = args.out.data,
                              .partial = partial_sums(args.workspace),
                              .tickets = static_cast<uint32_t*>(args.workspace.data),
                              .a_stride = stride_bytes(args.a),
                              .b_stride = stride_bytes(args.b),
                              .out_stride = stride_bytes(args.out),
                              .m = static_cast<int32_t>(args.m),
                              .n = static_cast<int32_t>(args.n),
                              .k = static_cast<int32_t>(args.k),
                              .tiles_m = tiles_m,
                              .tiles_n = tiles_n,
                              .splits = plan.splits,
                              .accumulate = args.accumulate ? 1 : 0};
  const std::string kernel =
      fmt::format("gemm_bf16_{}_{}x{}", args.out.dtype == DType::bf16 ? "bf16" : "f32", plan.tile_m,
                  plan.tile_n);
  return hip_device(stream).launch(
      {.operation = "gemm_bf16",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(tiles_m * tiles_n * plan.splits),
       .threads = static_cast<uint32_t>(plan.threads)},
      params, stream.native);
}

}  // namespace

const weft::Kernel<GemmBf16Args> gemm_bf16 = {plan, candidates, workspace, launch};

}  // namespace weft::cdna
