// rmsnorm_quant: adds a residual, normalises and quantises rows, in one pass over memory:
//   h = x + residual, rounded to their format and written back to residual
//   v = h / sqrt(mean(h^2) + epsilon) * weight
//   out = v, quantised (ops/scales.h)
#pragma once

#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/scales.h"

namespace weft {

/// Pointers of matrices are aligned to 16 bytes and their strides are multiples of 16 bytes.
struct RmsNormQuantArgs {
  int64_t rows = 0;
  int64_t columns = 0;  ///< a multiple of 8
  ConstMatrix x;        ///< [rows, columns], bf16 or f16
  Matrix residual;      ///< [rows, columns] in the same format, or null data: h = x
  ConstVector weight;   ///< [columns] in the same format, aligned to 16 bytes
  float epsilon = 1e-5f;
  Quantised y;  ///< fp8, or the format of x
  Workspace workspace;
};

/// Error (usage): which of the conditions above does not hold.
Status check(const RmsNormQuantArgs& args);
PlanKey plan_key(const RmsNormQuantArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status rmsnorm_quant(const RmsNormQuantArgs& args, Stream stream);
Result<size_t> rmsnorm_quant_workspace(const RmsNormQuantArgs& args, Stream stream);
const Kernel<RmsNormQuantArgs>* rmsnorm_quant_kernel(Arch arch);

namespace reference {
/// h and v of each row, [rows.size(), columns]; neither rounded nor quantised but for h, which is
/// rounded as above before v is computed from it. Nothing is written to args' matrices.
void rmsnorm_quant(const RmsNormQuantArgs& args, Range rows, double* h, double* v);
}  // namespace reference
namespace cpu {
void rmsnorm_quant(const RmsNormQuantArgs& args, Range rows);
}
namespace hopper {
extern const Kernel<RmsNormQuantArgs> rmsnorm_quant;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<RmsNormQuantArgs> rmsnorm_quant;  // NOLINT: named as the operation
}

}  // namespace weft
