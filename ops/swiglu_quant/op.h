// swiglu_quant: v = silu(gate) * up with silu(g) = g / (1 + exp(-g)) (Shazeer, 2020), quantised
// (ops/scales.h): what a feed-forward block's second product reads.
#pragma once

#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/scales.h"

namespace weft {

/// Pointers of matrices are aligned to 16 bytes and their strides are multiples of 16 bytes. Where
/// gate and up are halves of one matrix, up starts `columns` elements after gate.
struct SwigluQuantArgs {
  int64_t rows = 0;
  int64_t columns = 0;  ///< of the result; a multiple of 8
  ConstMatrix gate;     ///< [rows, columns], bf16 or f16
  ConstMatrix up;       ///< [rows, columns] in the same format
  Quantised y;          ///< fp8, or the format of gate
  Workspace workspace;
};

/// Error (usage): which of the conditions above does not hold.
Status check(const SwigluQuantArgs& args);
PlanKey plan_key(const SwigluQuantArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status swiglu_quant(const SwigluQuantArgs& args, Stream stream);
Result<size_t> swiglu_quant_workspace(const SwigluQuantArgs& args, Stream stream);
const Kernel<SwigluQuantArgs>* swiglu_quant_kernel(Arch arch);

namespace reference {
/// v of each row, [rows.size(), columns], not rounded.
void swiglu_quant(const SwigluQuantArgs& args, Range rows, double* v);
}  // namespace reference
namespace cpu {
void swiglu_quant(const SwigluQuantArgs& args, Range rows);
}
namespace hopper {
extern const Kernel<SwigluQuantArgs> swiglu_quant;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<SwigluQuantArgs> swiglu_quant;  // NOLINT: named as the operation
}

}  // namespace weft
