// The host's side of the AMD kernels of tiled matrix products, which differ in their operands
// alone.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "base/divide.h"
#include "ops/cdna_gemm.h"
#include "ops/cdna_gemm_plan.h"
#include "ops/cdna_launch.h"

namespace weft::cdna {

/// Error (usage): the arguments have less workspace than the plan needs.
template <class Args>
Result<GemmTask> gemm_task(std::string_view operation, const Args& args, const Plan& plan,
                           size_t workspace_bytes) {
  WEFT_TRY(check_workspace(operation, args.workspace, workspace_bytes));
  return GemmTask{.a = args.a.data,
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
                  .tiles_m = static_cast<int32_t>(ceil_div(args.m, plan.tile_m)),
                  .tiles_n = static_cast<int32_t>(ceil_div(args.n, plan.tile_n)),
                  .splits = plan.splits};
}

/// Kernel `variant` of an operation, "gemm_bf16_f32_128x128". `params` has its GemmTask as `task`.
template <class Params>
Status launch_gemm(std::string_view operation, std::string_view variant, const Plan& plan,
                   const Params& params, Stream stream) {
  const GemmTask& task = params.task;
  const std::string kernel =
      fmt::format("{}_{}_{}x{}", operation, variant, plan.tile_m, plan.tile_n);
  return hip_device(stream).launch(
      {.operation = operation,
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(task.tiles_m * task.tiles_n * task.splits),
       .threads = static_cast<uint32_t>(plan.threads)},
      params, stream.native);
}

}  // namespace weft::cdna
