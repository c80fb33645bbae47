// gemm_fp8_blockwise: out[m, n] = sum_k a[m, k] * b[n, k] of fp8 numbers with a scale for each 128
// elements of k of a row of a, and for each 128 x 128 block of b (DeepSeek-V3's format; the problem
// `fp8-mm` of the AMD developer challenge 2025). Products are scaled and summed in f32.
//
// With groups, as a mixture of experts has them, there is a b for each: rows of a come in blocks of
// 128, and each block is multiplied by the b of its group (the layout that DeepGEMM calls
// contiguous).
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

inline constexpr int64_t kGroupRows = 128;  ///< rows of a with one group

/// Pointers of matrices are aligned to 16 bytes and their strides (elements from one k to the next
/// where the layout is mn_major) are multiples of 16 bytes.
struct GemmFp8BlockwiseArgs {
  int64_t m = 0;                          ///< at least 1; with groups a multiple of 128
  int64_t n = 0;                          ///< a multiple of 8
  int64_t k = 0;                          ///< a multiple of 128
  Fp8Layout layout = Fp8Layout::k_major;  ///< with groups k_major
  int64_t groups = 0;                     ///< 0: one b for all rows; groups * n is below 2^31
  /// [m / 128] with groups: which one rows 128 i to 128 i + 127 have, in [0, groups), where the
  /// operation runs; in any order, fastest where blocks of a group are neighbours. -1: none, and
  /// these rows of out are not written. Numbers beyond are refused on the CPU alone.
  const int32_t* group_of = nullptr;
  ConstMatrix a;  ///< e4m3fn or e4m3fnuz
  /// The same format. With groups theirs are one behind the other: row j of group g is row
  /// g * n + j.
  ConstMatrix b;
  ConstScales a_scale;  ///< row m, block of k; any strides, fastest with row_stride 1
  /// Rows 128 r of n, block of k; any strides. Those of group g begin at r = g * ceil(n / 128).
  ConstScales b_scale;
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
/// the magnitudes of each 128 terms: of errors that these make independently of each other. Rows
/// that no group has are NaN in out and 0 in the others.
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
