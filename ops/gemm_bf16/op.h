// gemm_bf16: out[m, n] (+)= sum_k a[m, k] * b[n, k], for many rows: the projections of a prompt.
// Products of bf16 are exact in f32, sums are f32, the result is rounded once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

/// All pointers are aligned to 16 bytes and all strides are multiples of 16 bytes.
struct GemmBf16Args {
  int64_t m = 0;            ///< any, at least 1
  int64_t n = 0;            ///< a multiple of 8
  int64_t k = 0;            ///< a multiple of 8
  ConstMatrix a;            ///< [m, k], bf16
  ConstMatrix b;            ///< [n, k], bf16, as Hugging Face stores weights
  Matrix out;               ///< [m, n], bf16 or f32
  bool accumulate = false;  ///< f32 only: add to what out holds (the residual)
  bool constant_b = false;  ///< nothing in flight writes b or its scales: see Kernel
  /// On sm_90a: no plan that cuts k. All others add in the order of k, so that a row's bits do not
  /// depend on how many rows there are.
  bool whole_k = false;
  Workspace workspace;
};

/// Error (usage): which of the conditions above does not hold.
Status check(const GemmBf16Args& args);
PlanKey plan_key(const GemmBf16Args& args);

/// Computes it on a stream; on the CPU in the calling thread. Errors: check()'s; device (no kernel
/// for it, or its launch failed). What a device finds wrong during the run comes out when it is
/// waited for.
Status gemm_bf16(const GemmBf16Args& args, Stream stream);
/// Bytes of args.workspace that gemm_bf16() wants there; the workspace in `args` is not looked at.
Result<size_t> gemm_bf16_workspace(const GemmBf16Args& args, Stream stream);
/// This build's kernel for an architecture, or null.
const Kernel<GemmBf16Args>* gemm_bf16_kernel(Arch arch);

namespace reference {
/// out and magnitudes: [rows.size(), columns.size()], without what args.out held; the latter are
/// sums of |terms|, in whose units the error of a sum is measured.
void gemm_bf16(const GemmBf16Args& args, Range rows, Range columns, double* out,
               double* magnitudes);
}  // namespace reference
namespace cpu {
/// out[rows, columns]; the bits of an element depend on neither range, as long as rows.size() stays
/// on one side of a few rows (see linear). `scratch`: as many bytes as gemm_bf16_scratch_bytes()
/// says, aligned to 64.
void gemm_bf16(const GemmBf16Args& args, Range rows, Range columns, std::span<std::byte> scratch);
size_t gemm_bf16_scratch_bytes(const GemmBf16Args& args, int64_t rows);
}  // namespace cpu
namespace hopper {
extern const Kernel<GemmBf16Args> gemm_bf16;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<GemmBf16Args> gemm_bf16;  // NOLINT: named as the operation
}

}  // namespace weft
