// rmsnorm: y = x / sqrt(mean(x^2) + epsilon) * weight over each row (Zhang and Sennrich, 2019).
// Gemma's weights are stored less 1 (weight_offset). With a residual (norms after the block,
// OLMo-2): residual += scale * y, and y is the new residual. Norms over heads (Qwen3) are the same
// operation on rows of head_dim.
#pragma once

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct RmsNormArgs {
  ConstMatrix x;       ///< [rows, columns], f32
  ConstVector weight;  ///< [columns], f32, bf16 or f16
  int64_t columns = 0;
  /// Rows of x may hold several groups that are normalised apart: row r is columns
  /// [(r % groups) * columns, ...) of matrix row r / groups. 1: plain rows. Query and key heads.
  int64_t groups = 1;
  float epsilon = 1e-5f;
  float scale = 1;  ///< of y when it is added to the residual
  Matrix residual;  ///< [rows, columns], f32, or null data
  Matrix out;       ///< y in f32 or bf16, or null data; may be x (in place). Same groups as x.
  float weight_offset = 0;  ///< added to each weight: 1 for Gemma
};

namespace reference {
/// y of each row (the new residual where there is one); nothing is written to args' matrices.
void rmsnorm(const RmsNormArgs& args, Range rows, double* y);
}  // namespace reference
namespace cpu {
void rmsnorm(const RmsNormArgs& args, Range rows);
}

}  // namespace weft
