#include <cmath>
#include <limits>

#include "base/divide.h"
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
  const int64_t row_blocks = ceil_div(args.n, kScaleBlock);  // of a group's scales
  std::vector<std::vector<double>> a;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    a.push_back(line(args.a, r));
  }
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    std::vector<double> b;
    int64_t group_of_b = -1;
    for (int64_t r = 0; r < rows.size(); ++r) {
      const int64_t at = r * columns.size() + c - columns.begin;
      const int64_t group = args.groups == 0 ? 0 : args.group_of[(rows.begin + r) / kGroupRows];
      if (group < 0) {
        out[at] = std::numeric_limits<double>::quiet_NaN();
        magnitudes[at] = of_blocks[at] = 0;
        continue;
      }
      if (group != group_of_b) {
        b = line(args.b, group * args.n + c);
        group_of_b = group;
      }
      Product sum;
      double squares = 0;
      for (int64_t block = 0; block < args.k / kScaleBlock; ++block) {
        const int64_t k = block * kScaleBlock;
        const Product part =
            product(a[static_cast<size_t>(r)].data() + k, b.data() + k, kScaleBlock);
        const double both = scale(args.a_scale, rows.begin + r, block) *
                            scale(args.b_scale, group * row_blocks + c / kScaleBlock, block);
        sum.value += both * part.value;
        const double magnitude = std::fabs(both) * part.magnitude;
        sum.magnitude += magnitude;
        squares += magnitude * magnitude;
      }
      out[at] = sum.value;
      magnitudes[at] = sum.magnitude;
      of_blocks[at] = std::sqrt(squares);
    }
  }
}

}  // namespace weft::reference
