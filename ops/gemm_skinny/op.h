// gemm_skinny: out[m, n] = sum_k (a_scale a[m, k]) * (b_scale b[n, k]) for few rows: a decode
// step's projections, which are bound by reading b. bf16 as it is, or fp8 with scales for the whole
// tensor, for rows, or for blocks of 128. Sums are f32, the result is rounded once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/scales.h"

namespace weft {

inline constexpr int64_t kSkinnyRows = 32;

/// All pointers of matrices are aligned to 16 bytes and their strides are multiples of 16 bytes.
struct GemmSkinnyArgs {
  int64_t m = 0;                    ///< 1 to kSkinnyRows
  int64_t n = 0;                    ///< a multiple of 8
  int64_t k = 0;                    ///< a multiple of 16; with Scaling::block of 128
  ConstMatrix a;                    ///< [m, k], bf16, e4m3fn or e4m3fnuz
  ConstMatrix b;                    ///< [n, k], the same format
  Scaling scaling = Scaling::none;  ///< none: bf16; any other: fp8
  ConstScales a_scale;              ///< of rows m, or of rows and 128 elements of k
  ConstScales b_scale;              ///< of rows n, or of 128 rows and 128 elements of k
  Matrix out;                       ///< [m, n], bf16 or f32
  bool constant_b = false;          ///< nothing in flight writes b or its scales: see Kernel
  Workspace workspace;
};

/// Error (usage): which of the conditions above does not hold.
Status check(const GemmSkinnyArgs& args);
PlanKey plan_key(const GemmSkinnyArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status gemm_skinny(const GemmSkinnyArgs& args, Stream stream);
Result<size_t> gemm_skinny_workspace(const GemmSkinnyArgs& args, Stream stream);
const Kernel<GemmSkinnyArgs>* gemm_skinny_kernel(Arch arch);

namespace reference {
/// out, magnitudes and of_blocks: [rows.size(), columns.size()]. Magnitudes are sums of |terms|, in
/// whose units the error of a sum is measured; of_blocks are the roots of the sums of squares of
/// the magnitudes of each 128 terms: of errors that these make independently of each other.
void gemm_skinny(const GemmSkinnyArgs& args, Range rows, Range columns, double* out,
                 double* magnitudes, double* of_blocks);
}  // namespace reference
namespace cpu {
/// As cpu::gemm_bf16().
void gemm_skinny(const GemmSkinnyArgs& args, Range rows, Range columns,
                 std::span<std::byte> scratch);
size_t gemm_skinny_scratch_bytes(const GemmSkinnyArgs& args, int64_t rows);
}  // namespace cpu
namespace hopper {
extern const Kernel<GemmSkinnyArgs> gemm_skinny;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<GemmSkinnyArgs> gemm_skinny;  // NOLINT: named as the operation
}

}  // namespace weft
