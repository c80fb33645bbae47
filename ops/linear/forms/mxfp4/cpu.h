// Products with weights in MXFP4 on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/mx.h"
#include "base/range.h"
#include "ops/matrix.h"

namespace weft::cpu {

/// outs[m][r * stride + c] = a[r] . w[m][c] for rows [0, rows) of `a` (f32 or bf16) and the
/// columns. Up to kMxFewRows rows are multiplied in f32 with codes as they come from memory, each
/// sum in an order that nothing but k decides; more of them by `linear` with the numbers in bf16.
void mx_products(std::span<const MxMatrix> w, const ConstMatrix& a, int64_t rows, Range columns,
                 std::span<float* const> outs, int64_t stride, std::span<std::byte> scratch);
size_t mx_products_scratch_bytes(int64_t rows, int64_t k);
inline constexpr int64_t kMxFewRows = 8;

}  // namespace weft::cpu
