// gemm_fp8_blockwise: out[m, n] = sum_k a[m, k] * b[n, k] of fp8 numbers with a scale for each 128
// elements of k of a row of a, and for each 128 x 128 block of b (DeepSeek-V3's format; the problem
// `fp8-mm` of the AMD developer challenge 2025). Products are scaled and summed in f32.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/range.h"
#include "ops/kernel.h"
#include "ops/scales.h"

namespace weft {

/// How a and b lie in memory, both the same way.
enum class Fp8Layout : uint8_t {
  k_major,   ///< a is [m, k], b is [n, k]: what engines have
  mn_major,  ///< a is [k, m], b is [k, n]: 'column-major', the challenge's
};

/// Pointers of matrices are aligned to 16 bytes and their strides (elements from one k to the next
/// where the layout is mn_major) are multiples of 16 bytes.
struct GemmFp8BlockwiseArgs {
  int64_t m = 0;  ///< any, at least 1
  int64_t n = 0;  ///< a multiple of 8
  int64_t k = 0;  ///< a multiple of 128
  Fp8Layout layout = Fp8Layout::k_major;
  ConstMatrix a;            ///< e4m3fn or e4m3fnuz
  ConstMatrix b;            ///< the same format
  ConstScales a_scale;      ///< row m, block of k; any strides, fastest with row_stride 1
  ConstScales b_scale;      ///< rows 128 r of n, block of k; any strides
  Matrix out;               ///< [m, n], bf16
  bool constant_b = false;  ///< nothing in flight writes b or its scales: see Kernel
  Workspace workspace;
};

/// Error (usage): which of the conditions above does not hold.
Status check(const GemmFp8BlockwiseArgs& args);
PlanKey plan_key(const GemmFp8BlockwiseArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Stream stream);
Result<size_t> gemm_fp8_blockwise_workspace(const GemmFp8BlockwiseArgs& args, Stream stream);
const Kernel<GemmFp8BlockwiseArgs>* gemm_fp8_blockwise_kernel(Arch arch);

namespace reference {
/// out, magnitudes and of_blocks: [rows.size(), columns.size()]. Magnitudes are sums of |terms|, in
/// whose units the error of a sum is measured; of_blocks are the roots of the sums of squares of
/// the magnitudes of each 128 terms: of errors that these make independently of each other.
void gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Range rows, Range columns, double* out,
                        double* magnitudes, double* of_blocks);
}  // namespace reference
namespace cpu {
/// As cpu::gemm_bf16().
void gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Range rows, Range columns,
                        std::span<std::byte> scratch);
size_t gemm_fp8_blockwise_scratch_bytes(const GemmFp8BlockwiseArgs& args, int64_t rows);
}  // namespace cpu
namespace hopper {
extern const Kernel<GemmFp8BlockwiseArgs> gemm_fp8_blockwise;  // NOLINT: named as the operation
}
namespace cdna {
extern const Kernel<GemmFp8BlockwiseArgs> gemm_fp8_blockwise;  // NOLINT: named as the operation
}

}  // namespace weft
