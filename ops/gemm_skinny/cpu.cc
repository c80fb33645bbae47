// gemm_skinny on the CPU: fp8 by arch/cpu/fp8-inl.h; bf16 is gemm_bf16, which streams for few rows.
#include "ops/gemm_skinny/op.h"

#include "ops/gemm_bf16/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm_skinny/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/fp8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void gemm_skinny_tile(const GemmSkinnyArgs& args, Range rows, Range columns,
                      std::span<std::byte> scratch) {
  const bool blocks = args.scaling == Scaling::block;
  const bool by_row = args.scaling != Scaling::tensor;
  const auto operand = [](const ConstMatrix& matrix) {
    return Fp8Matrix{.data = static_cast<const uint8_t*>(matrix.data),
                     .dtype = matrix.dtype,
                     .row_step = matrix.stride,
                     .step = 1};
  };
  fp8_product({.a = operand(args.a),
               .b = operand(args.b),
               .k = args.k,
               .block = blocks ? kScaleBlock : args.k,
               .a_scale = args.a_scale.data,
               .a_scale_row = by_row ? args.a_scale.row_stride : 0,
               .a_scale_block = blocks ? args.a_scale.block_stride : 0,
               .b_scale = args.b_scale.data,
               .b_scale_rows = blocks ? kScaleBlock : 1,
               .b_scale_row = by_row ? args.b_scale.row_stride : 0,
               .b_scale_block = blocks ? args.b_scale.block_stride : 0,
               .out = args.out},
              rows, columns, scratch);
}

int64_t gemm_skinny_scratch(int64_t rows, int64_t k, int64_t block) {
  return Fp8Scratch(rows, k, block).size;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

GemmBf16Args as_bf16(const GemmSkinnyArgs& args) {
  return {.m = args.m,
          .n = args.n,
          .k = args.k,
          .a = args.a,
          .b = args.b,
          .out = args.out,
          .accumulate = false,
          .workspace = {}};
}

}  // namespace

void gemm_skinny(const GemmSkinnyArgs& args, Range rows, Range columns,
                 std::span<std::byte> scratch) {
  if (args.scaling == Scaling::none) {
    return gemm_bf16(as_bf16(args), rows, columns, scratch);
  }
  WEFT_CPU_DISPATCH(gemm_skinny_tile)(args, rows, columns, scratch);
}

size_t gemm_skinny_scratch_bytes(const GemmSkinnyArgs& args, int64_t rows) {
  if (args.scaling == Scaling::none) {
    return gemm_bf16_scratch_bytes(as_bf16(args), rows);
  }
  const int64_t block = args.scaling == Scaling::block ? kScaleBlock : args.k;
  return static_cast<size_t>(WEFT_CPU_DISPATCH(gemm_skinny_scratch)(rows, args.k, block));
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
