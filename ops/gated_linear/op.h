// gated_linear: out[r, c] = f(g) * u with g = a.gate[c] + gate_bias[c], u = a.up[c] + up_bias[c]
// and f an activation: both projections of a gated FFN (SwiGLU, GeGLU; Shazeer, 2020) in one pass.
#pragma once

#include <cstddef>
#include <span>

#include "base/activation.h"
#include "base/range.h"
#include "base/scaling.h"
#include "ops/matrix.h"

namespace weft {

namespace cpu {
struct PackedMatrix;  // arch/cpu/packed.h
}

struct GatedLinearArgs {
  ConstMatrix a;          ///< [rows, k]: f32, or bf16 when the weights are bf16 (see linear)
  ConstMatrix gate;       ///< [n, k], f32, bf16, f16 or e4m3fn
  ConstMatrix up;         ///< [n, k], the same format as gate
  ConstVector gate_bias;  ///< [n] or null data
  ConstVector up_bias;    ///< [n] or null data
  const cpu::PackedMatrix* packed = nullptr;  ///< cpu: gate and up packed; see linear
  int64_t n = 0;
  int64_t k = 0;
  Matrix out;  ///< [rows, n], f32 or bf16
  Activation activation = Activation::silu;
  WeightScales gate_scales = {};  ///< see linear
  WeightScales up_scales = {};
  Fp8Rounding rounding = {};
};

namespace reference {
void gated_linear(const GatedLinearArgs& args, Range rows, Range columns, double* out);
}
namespace cpu {
/// See linear: same promises.
void gated_linear(const GatedLinearArgs& args, Range rows, Range columns,
                  std::span<std::byte> scratch);
/// See linear_prefetch.
void gated_linear_prefetch(const GatedLinearArgs& args, Range columns, int64_t line);
/// Enough for calls of up to `rows` rows.
size_t gated_linear_scratch_bytes(const GatedLinearArgs& args, int64_t rows);
}  // namespace cpu

}  // namespace weft
