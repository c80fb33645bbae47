#include <cmath>

#include "ops/decode.h"
#include "ops/gemm_fp8_blockwise/op.h"

namespace weft::reference {

void gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Range rows, Range columns, double* out,
                        double* magnitudes, double* of_blocks) {
  const auto line = [&](const ConstMatrix& matrix, int64_t r) {
    return args.layout == Fp8Layout::k_major
               ? decode(matrix.data, matrix.dtype, r * matrix.stride, 1, args.k)
               : decode(matrix.data, matrix.dtype, r, matrix.stride, args.k);
  };
  const auto scale = [](const ConstScales& scales, int64_t r, int64_t block) -> double {
    return scales.data[r * scales.row_stride + block * scales.block_stride];
  };
  std::vector<std::vector<double>> a;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    a.push_back(line(args.a, r));
  }
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    const auto b = line(args.b, c);
    for (int64_t r = 0; r < rows.size(); ++r) {
      Product sum;
      double squares = 0;
      for (int64_t block = 0; block < args.k / kScaleBlock; ++block) {
        const int64_t k = block * kScaleBlock;
        const Product part =
            product(a[static_cast<size_t>(r)].data() + k, b.data() + k, kScaleBlock);
        const double both = scale(args.a_scale, rows.begin + r, block) *
                            scale(args.b_scale, c / kScaleBlock, block);
        sum.value += both * part.value;
        const double magnitude = std::fabs(both) * part.magnitude;
        sum.magnitude += magnitude;
        squares += magnitude * magnitude;
      }
      const int64_t at = r * columns.size() + c - columns.begin;
      out[at] = sum.value;
      magnitudes[at] = sum.magnitude;
      of_blocks[at] = std::sqrt(squares);
    }
  }
}

}  // namespace weft::reference
