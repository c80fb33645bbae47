#include <cmath>

#include "ops/rmsnorm_quant/op.h"

namespace weft::reference {

void rmsnorm_quant(const RmsNormQuantArgs& args, Range rows, double* h, double* v) {
  for (int64_t r = rows.begin; r < rows.end; ++r, h += args.columns, v += args.columns) {
    double squares = 0;
    for (int64_t c = 0; c < args.columns; ++c) {
      h[c] = element(args.x, r, c);
      if (args.residual.data != nullptr) {
        const auto sum = static_cast<float>(
            h[c] + element(args.residual.data, args.residual.dtype, r * args.residual.stride + c));
        h[c] = args.x.dtype == DType::bf16 ? to_float(to_bf16(sum)) : to_float(to_f16(sum));
      }
      squares += h[c] * h[c];
    }
    const double rms = std::sqrt(squares / static_cast<double>(args.columns) + args.epsilon);
    for (int64_t c = 0; c < args.columns; ++c) {
      v[c] = h[c] / rms * element(args.weight.data, args.weight.dtype, c);
    }
  }
}

}  // namespace weft::reference
