// linear on AMD, the host's side.
#include "ops/linear/cdna.h"

#include <algorithm>

#include "ops/cdna_gemm_launch.h"
#include "ops/gemm_bf16/op.h"
#include "ops/linear/cdna_prefill.h"

namespace weft::cdna {
namespace {

/// Whether the product is all that is wanted.
bool plain(const LinearArgs& args) {
  return args.a.dtype == DType::bf16 && args.bias.data == nullptr && args.alpha == 1 &&
         args.activation == Activation::none && args.soft_cap == 0;
}

GemmBf16Args product(const LinearArgs& args, int64_t rows, const Workspace& workspace) {
  return {.m = rows,
          .n = args.n,
          .k = args.k,
          .a = args.a,
          .b = args.w,
          .out = args.out,
          .accumulate = args.accumulate,
          .constant_b = true,
          .workspace = workspace};
}

}  // namespace

std::string_view refuse_prefill_linear(const LinearArgs& args) {
  if (is_fp8(args.w.dtype)) {
    return "weights in fp8 are multiplied as gemm_fp8_blockwise and gemm_skinny";
  }
  if (args.a.dtype != DType::f32 && (args.a.dtype != DType::bf16 || args.w.dtype != DType::bf16)) {
    return "rows must be f32, or bf16 and the weights too";
  }
  if (args.bias.data != nullptr && args.bias.dtype != args.w.dtype) {
    return "a bias must have the weights' format";
  }
  return args.n % 8 == 0 && args.k % 8 == 0 && args.a.stride % 8 == 0 && args.w.stride % 8 == 0 &&
                 args.out.stride % (args.out.dtype == DType::bf16 ? 8 : 4) == 0
             ? ""
             : "n, k and strides must be multiples of 8";
}

Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream) {
  constexpr int64_t kMostRows = 4096;
  constexpr int64_t kStep = 32;  // of the kernels' tiles
  size_t most = 0;
  for (int64_t rows = kStep; plain(args) && rows <= kMostRows; rows += kStep) {
    WEFT_ASSIGN(const size_t bytes, gemm_bf16_workspace(product(args, rows, {}), stream));
    most = std::max(most, bytes);
  }
  return most;
}

Status prefill_linear(const LinearArgs& args, int64_t rows, const PrefillScratch& scratch,
                      Stream stream) {
  if (plain(args)) {
    return weft::gemm_bf16(product(args, rows, scratch.workspace), stream);
  }
  const GemmTask task =
      gemm_task(args.a, args.w, args.out, rows, args.n, args.k, kLinearTile, kLinearTile);
  const LinearParams params{.task = task,
                            .bias = args.bias.data,
                            .alpha = args.alpha,
                            .soft_cap = args.soft_cap,
                            .activation = args.activation,
                            .accumulate = args.accumulate ? 1 : 0,
                            .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0};
  const std::string kernel =
      fmt::format("linear_{}_{}", short_name(args.a.dtype), short_name(args.w.dtype));
  return hip_device(stream).launch({.operation = "linear",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(task.tiles_m * task.tiles_n),
                                    .threads = 256},
                                   params, stream.native);
}

}  // namespace weft::cdna
