// layernorm: y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over each row (Ba,
// Kiros and Hinton, 2016); the variance is the mean of squared differences.
#pragma once

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

/// On a device columns are a multiple of 8, pointers aligned to 16 bytes and strides multiples of
/// that.
struct LayerNormArgs {
  int64_t rows = 0;    ///< of a launch on a stream; cpu::layernorm() is told its own
  ConstMatrix x;       ///< [rows, columns], f32
  ConstVector weight;  ///< [columns], f32, bf16 or f16
  ConstVector bias;    ///< [columns], the same format as weight
  int64_t columns = 0;
  float epsilon = 1e-5f;
  Matrix out;                ///< [rows, columns], f32 or bf16; may be x (in place) when f32
  Workspace workspace = {};  ///< none is needed
};

/// Error (usage): which of the conditions above does not hold.
Status check(const LayerNormArgs& args);
PlanKey plan_key(const LayerNormArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status layernorm(const LayerNormArgs& args, Stream stream);
const Kernel<LayerNormArgs>* layernorm_kernel(Arch arch);

namespace reference {
void layernorm(const LayerNormArgs& args, Range rows, double* y);
}
namespace cpu {
void layernorm(const LayerNormArgs& args, Range rows);
}
namespace hopper {
extern const Kernel<LayerNormArgs> layernorm;  // NOLINT: named as the operation
}
namespace cdna {
extern const weft::Kernel<LayerNormArgs> layernorm;  // NOLINT: named as the operation
}

}  // namespace weft
