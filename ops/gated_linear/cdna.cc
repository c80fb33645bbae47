// gated_linear on AMD, the host's side.
#include "ops/gated_linear/cdna.h"

#include "ops/cdna_gemm_launch.h"
#include "ops/gated_linear/cdna_prefill.h"

namespace weft::cdna {

std::string_view refuse_prefill_gated_linear(const GatedLinearArgs& args) {
  if (args.activation == Activation::none) {
    return "the activation must be SiLU or GELU";
  }
  if (is_fp8(args.gate.dtype) || args.up.dtype != args.gate.dtype) {
    return "weights must both be f32, bf16 or f16";
  }
  if (args.a.dtype != DType::f32 &&
      (args.a.dtype != DType::bf16 || args.gate.dtype != DType::bf16)) {
    return "rows must be f32, or bf16 and the weights too";
  }
  return args.n % 8 == 0 && args.k % 8 == 0 && args.a.stride % 8 == 0 &&
                 args.gate.stride % 8 == 0 && args.up.stride % 8 == 0 &&
                 args.out.stride % (args.out.dtype == DType::bf16 ? 8 : 4) == 0
             ? ""
             : "n, k and strides must be multiples of 8";
}

Status prefill_gated_linear(const GatedLinearArgs& args, int64_t rows, Stream stream) {
  const GemmTask task = gemm_task(args.a, args.gate, args.out, rows, args.n, args.k,
                                  kGatedLinearTile, kGatedLinearTile);
  const GatedLinearParams params{.task = task,
                                 .up = args.up.data,
                                 .gate_bias = args.gate_bias.data,
                                 .up_bias = args.up_bias.data,
                                 .up_stride = stride_bytes(args.up),
                                 .activation = args.activation,
                                 .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0};
  const std::string kernel =
      fmt::format("gated_linear_{}_{}", short_name(args.a.dtype), short_name(args.gate.dtype));
  return hip_device(stream).launch({.operation = "gated_linear",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(task.tiles_m * task.tiles_n),
                                    .threads = 256},
                                   params, stream.native);
}

}  // namespace weft::cdna
