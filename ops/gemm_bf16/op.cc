#include "ops/gemm_bf16/op.h"

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "gemm_bf16";

}  // namespace

Status check(const GemmBf16Args& args) {
  WEFT_TRY(check_size(kName, "m", args.m, 1));
  WEFT_TRY(check_size(kName, "n", args.n, 8, 8));
  WEFT_TRY(check_size(kName, "k", args.k, 8, 8));
  WEFT_TRY(check_matrix(kName, "a", args.a, args.k, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "b", args.b, args.k, {DType::bf16}));
  if (args.accumulate) {
    return check_matrix(kName, "out (with accumulate)", args.out, args.n, {DType::f32});
  }
  return check_matrix(kName, "out", args.out, args.n, {DType::bf16, DType::f32});
}

PlanKey plan_key(const GemmBf16Args& args) {
  return {args.m, args.n, args.k,
          args.accumulate ? "f32,accumulate" : format_key(args.out.dtype, Scaling::none)};
}

const Kernel<GemmBf16Args>* gemm_bf16_kernel(Arch arch) { return WEFT_KERNEL_OF(gemm_bf16)(arch); }

Result<size_t> gemm_bf16_workspace(const GemmBf16Args& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::gemm_bf16_scratch_bytes(args, args.m);
  }
  return workspace_bytes(kName, gemm_bf16_kernel(stream.device->info().arch), args, stream);
}

Status gemm_bf16(const GemmBf16Args& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::gemm_bf16_scratch_bytes(args, args.m);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::gemm_bf16(args, {0, args.m}, {0, args.n},
                   {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, gemm_bf16_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft
