#include <algorithm>
#include <cmath>

#include "ops/decode.h"
#include "ops/gemm_skinny/op.h"

namespace weft::reference {
namespace {

/// The scale of row r (or of rows of weights) and block b.
double scale_of(const ConstScales& scales, Scaling scaling, int64_t r, int64_t b) {
  switch (scaling) {
    case Scaling::none:
      return 1;
    case Scaling::tensor:
      return scales.data[0];
    case Scaling::row:
      return scales.data[r * scales.row_stride];
    case Scaling::block:
      return scales.data[r * scales.row_stride + b * scales.block_stride];
  }
  return 1;
}

}  // namespace

void gemm_skinny(const GemmSkinnyArgs& args, Range rows, Range columns, double* out,
                 double* magnitudes, double* of_blocks) {
  const bool blocks = args.scaling == Scaling::block;
  const int64_t length = blocks ? kScaleBlock : args.k;  // that shares its scales
  std::vector<std::vector<double>> a;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    a.push_back(decode(args.a.data, args.a.dtype, r * args.a.stride, 1, args.k));
  }
  for (int64_t c = columns.begin; c < columns.end; ++c) {
    const auto b = decode(args.b.data, args.b.dtype, c * args.b.stride, 1, args.k);
    for (int64_t r = 0; r < rows.size(); ++r) {
      Product sum;
      double squares = 0;
      for (int64_t k = 0; k < args.k; k += length) {
        const double scale =
            scale_of(args.a_scale, args.scaling, rows.begin + r, k / kScaleBlock) *
            scale_of(args.b_scale, args.scaling, blocks ? c / kScaleBlock : c, k / kScaleBlock);
        double value = 0;  // of all that shares the scale: it is multiplied once
        for (int64_t i = k; i < k + length; i += kScaleBlock) {
          const Product part = product(a[static_cast<size_t>(r)].data() + i, b.data() + i,
                                       std::min(kScaleBlock, k + length - i));
          const double magnitude = std::fabs(scale) * part.magnitude;
          value += part.value;
          sum.magnitude += magnitude;
          squares += magnitude * magnitude;
        }
        sum.value += scale * value;
      }
      const int64_t at = r * columns.size() + c - columns.begin;
      out[at] = sum.value;
      magnitudes[at] = sum.magnitude;
      of_blocks[at] = std::sqrt(squares);
    }
  }
}

}  // namespace weft::reference
