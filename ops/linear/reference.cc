#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "ops/activation_reference.h"
#include "ops/decode.h"
#include "ops/linear/op.h"

namespace weft::reference {
namespace {

/// Fp8Rounding of a row, in f32 as it is defined.
void round_to_fp8(const Fp8Rounding& rounding, std::vector<double>& row) {
  const auto k = std::ssize(row);
  const int64_t block = rounding.scaling == Scaling::block ? kScaleBlock : k;
  for (int64_t begin = 0; begin < k; begin += block) {
    const std::span<double> part = std::span(row).subspan(
        static_cast<size_t>(begin), static_cast<size_t>(std::min(block, k - begin)));
    float scale = rounding.scale;
    if (rounding.scaling != Scaling::tensor) {
      double most = 0;
      for (const double x : part) {
        most = std::max(most, std::fabs(x));
      }
      scale = std::max(std::min(static_cast<float>(most), rounding.largest) / kMax<e4m3fn>,
                       rounding.least_scale);
      scale = scale > 0 ? scale : 1;
    }
    for (double& x : part) {
      x = static_cast<double>(to_float(saturate_to<e4m3fn>(static_cast<float>(x) / scale))) * scale;
    }
  }
}

}  // namespace

void linear(const LinearArgs& args, Range rows, Range columns, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::vector<double> a = decode(args.a.data, args.a.dtype, r * args.a.stride, 1, args.k);
    if (args.rounding.scaling != Scaling::none) {
      round_to_fp8(args.rounding, a);
    }
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      double sum = args.bias.data == nullptr ? 0 : element(args.bias.data, args.bias.dtype, c);
      for (int64_t i = 0; i < args.k; ++i) {
        sum += a[static_cast<size_t>(i)] *
               element(args.w.data, args.w.dtype, c * args.w.stride + i) * args.scales.at(c, i);
      }
      const double value = activate(args.activation, args.alpha * sum);
      *out++ = args.soft_cap > 0 ? args.soft_cap * std::tanh(value / args.soft_cap) : value;
    }
  }
}

}  // namespace weft::reference
