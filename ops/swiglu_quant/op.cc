#include "ops/swiglu_quant/op.h"

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "swiglu_quant";

}  // namespace

Status check(const SwigluQuantArgs& args) {
  WEFT_TRY(check_size(kName, "rows", args.rows, 1));
  WEFT_TRY(check_size(kName, "columns", args.columns, 8, 8));
  WEFT_TRY(check_matrix(kName, "gate", args.gate, args.columns, {DType::bf16, DType::f16}));
  WEFT_TRY(check_matrix(kName, "up", args.up, args.columns, {args.gate.dtype}));
  return check_quantised(kName, args.y, args.columns, args.gate.dtype);
}

PlanKey plan_key(const SwigluQuantArgs& args) {
  return {args.rows, args.columns, 0, format_key(args.y.out.dtype, args.y.scaling)};
}

const Kernel<SwigluQuantArgs>* swiglu_quant_kernel(Arch arch) {
  return WEFT_KERNEL_OF(swiglu_quant)(arch);
}

Result<size_t> swiglu_quant_workspace(const SwigluQuantArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return size_t{0};
  }
  return workspace_bytes(kName, swiglu_quant_kernel(stream.device->info().arch), args, stream);
}

Status swiglu_quant(const SwigluQuantArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    cpu::swiglu_quant(args, {0, args.rows});
    return {};
  }
  return launch(kName, swiglu_quant_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft
