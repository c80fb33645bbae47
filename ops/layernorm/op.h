// layernorm: y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over each row (Ba,
// Kiros and Hinton, 2016); the variance is the mean of squared differences.
#pragma once

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct LayerNormArgs {
  ConstMatrix x;       ///< [rows, columns], f32
  ConstVector weight;  ///< [columns], f32, bf16 or f16
  ConstVector bias;    ///< [columns], the same format as weight
  int64_t columns = 0;
  float epsilon = 1e-5f;
  Matrix out;  ///< [rows, columns], f32 or bf16; may be x (in place) when f32
};

namespace reference {
void layernorm(const LayerNormArgs& args, Range rows, double* y);
}
namespace cpu {
void layernorm(const LayerNormArgs& args, Range rows);
}

}  // namespace weft
