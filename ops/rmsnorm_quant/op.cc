#include "ops/rmsnorm_quant/op.h"

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "rmsnorm_quant";

}  // namespace

Status check(const RmsNormQuantArgs& args) {
  WEFT_TRY(check_size(kName, "rows", args.rows, 1));
  WEFT_TRY(check_size(kName, "columns", args.columns, 8, 8));
  WEFT_TRY(check_matrix(kName, "x", args.x, args.columns, {DType::bf16, DType::f16}));
  if (args.residual.data != nullptr) {
    WEFT_TRY(check_matrix(kName, "residual", args.residual, args.columns, {args.x.dtype}));
  }
  WEFT_TRY(check_matrix(kName, "weight", {args.weight.data, args.weight.dtype, args.columns},
                        args.columns, {args.x.dtype}));
  return check_quantised(kName, args.y, args.columns, args.x.dtype);
}

PlanKey plan_key(const RmsNormQuantArgs& args) {
  return {args.rows, args.columns, 0, format_key(args.y.out.dtype, args.y.scaling)};
}

const Kernel<RmsNormQuantArgs>* rmsnorm_quant_kernel(Arch arch) {
  return WEFT_KERNEL_OF(rmsnorm_quant)(arch);
}

Result<size_t> rmsnorm_quant_workspace(const RmsNormQuantArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return size_t{0};
  }
  return workspace_bytes(kName, rmsnorm_quant_kernel(stream.device->info().arch), args, stream);
}

Status rmsnorm_quant(const RmsNormQuantArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    cpu::rmsnorm_quant(args, {0, args.rows});
    return {};
  }
  return launch(kName, rmsnorm_quant_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft
