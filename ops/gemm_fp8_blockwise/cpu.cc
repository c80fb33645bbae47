// gemm_fp8_blockwise on the CPU: arch/cpu/fp8-inl.h.
#include "base/divide.h"
#include "ops/gemm_fp8_blockwise/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm_fp8_blockwise/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/fp8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void gemm_fp8_blockwise_tile(const GemmFp8BlockwiseArgs& args, Range rows, Range columns,
                             std::span<std::byte> scratch) {
  const bool k_major = args.layout == Fp8Layout::k_major;
  const auto operand = [&](const ConstMatrix& matrix) {
    return Fp8Matrix{.data = static_cast<const uint8_t*>(matrix.data),
                     .dtype = matrix.dtype,
                     .row_step = k_major ? matrix.stride : 1,
                     .step = k_major ? 1 : matrix.stride};
  };
  Fp8Product product{.a = operand(args.a),
                     .b = operand(args.b),
                     .k = args.k,
                     .block = kScaleBlock,
                     .a_scale = args.a_scale.data,
                     .a_scale_row = args.a_scale.row_stride,
                     .a_scale_block = args.a_scale.block_stride,
                     .b_scale = args.b_scale.data,
                     .b_scale_rows = kScaleBlock,
                     .b_scale_row = args.b_scale.row_stride,
                     .b_scale_block = args.b_scale.block_stride,
                     .out = args.out};
  if (args.groups == 0) {
    fp8_product(product, rows, columns, scratch);
    return;
  }
  const auto group_of = [&](int64_t row) { return args.group_of[row / kGroupRows]; };
  for (Range part{rows.begin, rows.begin}; part.begin < rows.end; part.begin = part.end) {
    const int64_t group = group_of(part.begin);
    while (part.end < rows.end && group_of(part.end) == group) {
      part.end = std::min(round_up(part.end + 1, kGroupRows), rows.end);
    }
    if (group >= 0) {
      product.b = operand(args.b);
      product.b.data += group * args.n * args.b.stride;
      product.b_scale =
          args.b_scale.data + group * ceil_div(args.n, kScaleBlock) * args.b_scale.row_stride;
      fp8_product(product, part, columns, scratch);
    }
  }
}

int64_t gemm_fp8_blockwise_scratch(int64_t rows, int64_t k) {
  return Fp8Scratch(rows, k, kScaleBlock).size;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

void gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Range rows, Range columns,
                        std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(gemm_fp8_blockwise_tile)(args, rows, columns, scratch);
}

size_t gemm_fp8_blockwise_scratch_bytes(const GemmFp8BlockwiseArgs& args, int64_t rows) {
  return static_cast<size_t>(WEFT_CPU_DISPATCH(gemm_fp8_blockwise_scratch)(rows, args.k));
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
