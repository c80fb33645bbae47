#include "ops/gemm_skinny/op.h"

#include <fmt/format.h>

#include <utility>

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "gemm_skinny";

}  // namespace

Status check(const GemmSkinnyArgs& args) {
  const bool fp8 = args.scaling != Scaling::none;
  WEFT_TRY(check_size(kName, "m", args.m, 1));
  if (args.m > kSkinnyRows) {
    return usage_error(
        fmt::format("{}: m is {}, but must be at most {} (see gemm_bf16 and gemm_fp8_blockwise)",
                    kName, args.m, kSkinnyRows));
  }
  WEFT_TRY(check_size(kName, "n", args.n, 8, 8));
  const int64_t unit = args.scaling == Scaling::block ? kScaleBlock : 16;
  WEFT_TRY(check_size(kName, "k", args.k, unit, unit));
  for (const auto& [name, matrix] : {std::pair("a", args.a), std::pair("b", args.b)}) {
    WEFT_TRY(fp8 ? check_matrix(kName, name, matrix, args.k, {DType::e4m3fn, DType::e4m3fnuz})
                 : check_matrix(kName, name, matrix, args.k, {DType::bf16}));
  }
  if (args.a.dtype != args.b.dtype) {
    return usage_error(fmt::format("{}: a is {}, but b is {}", kName, name_of(args.a.dtype),
                                   name_of(args.b.dtype)));
  }
  WEFT_TRY(check_scales(kName, "a_scale", args.a_scale.data, args.scaling));
  WEFT_TRY(check_scales(kName, "b_scale", args.b_scale.data, args.scaling));
  return check_matrix(kName, "out", args.out, args.n, {DType::bf16, DType::f32});
}

PlanKey plan_key(const GemmSkinnyArgs& args) {
  return {args.m, args.n, args.k, format_key(args.a.dtype, args.scaling)};
}

const Kernel<GemmSkinnyArgs>* gemm_skinny_kernel(Arch arch) {
  return WEFT_KERNEL_OF(gemm_skinny)(arch);
}

Result<size_t> gemm_skinny_workspace(const GemmSkinnyArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::gemm_skinny_scratch_bytes(args, args.m);
  }
  return workspace_bytes(kName, gemm_skinny_kernel(stream.device->info().arch), args, stream);
}

Status gemm_skinny(const GemmSkinnyArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::gemm_skinny_scratch_bytes(args, args.m);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::gemm_skinny(args, {0, args.m}, {0, args.n},
                     {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, gemm_skinny_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft
