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

/// out [m, n] = a [m, k] b [n, k]' in tiles of tile_m x tile_n, k not split.
inline GemmTask gemm_task(const ConstMatrix& a, const ConstMatrix& b, const Matrix& out, int64_t m,
                          int64_t n, int64_t k, int64_t tile_m, int64_t tile_n) {
  return {.a = a.data,
          .b = b.data,
          .out = out.data,
          .partial = nullptr,
          .tickets = nullptr,
          .a_stride = stride_bytes(a),
          .b_stride = stride_bytes(b),
          .out_stride = stride_bytes(out),
          .m = static_cast<int32_t>(m),
          .n = static_cast<int32_t>(n),
          .k = static_cast<int32_t>(k),
          .tiles_m = static_cast<int32_t>(ceil_div(m, tile_m)),
          .tiles_n = static_cast<int32_t>(ceil_div(n, tile_n)),
          .splits = 1};
}

/// The same as a plan says. Error (usage): the arguments have less workspace than it needs.
template <class Args>
Result<GemmTask> gemm_task(std::string_view operation, const Args& args, const Plan& plan,
                           size_t workspace_bytes) {
  WEFT_TRY(check_workspace(operation, args.workspace, workspace_bytes));
  GemmTask task =
      gemm_task(args.a, args.b, args.out, args.m, args.n, args.k, plan.tile_m, plan.tile_n);
  task.partial = partial_sums(args.workspace);
  task.tickets = static_cast<uint32_t*>(args.workspace.data);
  task.splits = plan.splits;
  return task;
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
