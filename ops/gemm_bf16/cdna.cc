// gemm_bf16 on AMD, the host's side.
#include "ops/gemm_bf16/cdna.h"

#include "ops/cdna_gemm_launch.h"
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
  WEFT_ASSIGN(const GemmTask task, gemm_task("gemm_bf16", args, plan, workspace(args, plan)));
  return launch_gemm("gemm_bf16", args.out.dtype == DType::bf16 ? "bf16" : "f32", plan,
                     GemmBf16Params{.task = task, .accumulate = args.accumulate ? 1 : 0}, stream);
}

}  // namespace

const weft::Kernel<GemmBf16Args> gemm_bf16 = {plan, candidates, workspace, launch};

}  // namespace weft::cdna
