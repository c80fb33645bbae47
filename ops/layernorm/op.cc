#include "ops/layernorm/op.h"

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "layernorm";

}  // namespace

Status check(const LayerNormArgs& args) {
  WEFT_TRY(check_size(kName, "rows", args.rows, 1));
  WEFT_TRY(check_size(kName, "columns", args.columns, 8, 8));
  WEFT_TRY(check_matrix(kName, "x", args.x, args.columns, {DType::f32}));
  WEFT_TRY(check_matrix(kName, "weight", {args.weight.data, args.weight.dtype, args.columns},
                        args.columns, {DType::f32, DType::bf16, DType::f16}));
  WEFT_TRY(check_matrix(kName, "bias", {args.bias.data, args.bias.dtype, args.columns},
                        args.columns, {args.weight.dtype}));
  return check_matrix(kName, "out", args.out, args.columns, {DType::f32, DType::bf16});
}

PlanKey plan_key(const LayerNormArgs& args) {
  return {args.rows, args.columns, 0, name_of(args.out.dtype)};
}

const Kernel<LayerNormArgs>* layernorm_kernel(Arch arch) { return WEFT_KERNEL_OF(layernorm)(arch); }

Status layernorm(const LayerNormArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    cpu::layernorm(args, {0, args.rows});
    return {};
  }
  return launch(kName, layernorm_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft
