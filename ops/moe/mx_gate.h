// What stands between the products of experts in MXFP4 on the CPU.
#pragma once

#include <cstdint>

#include "base/range.h"
#include "ops/gated_linear/op.h"
#include "ops/matrix.h"

namespace weft::cpu {

/// out[r, columns] = what ExpertsUpArgs::limit says of gate[r * stride + c] and up[...], `expert`'s
/// biases added.
void mx_gate(const GatedLinearArgs& expert, float limit, const float* gate, const float* up,
             int64_t stride, int64_t rows, Range columns, const Matrix& out);

}  // namespace weft::cpu
