#include <cmath>

#include "ops/rmsnorm/op.h"

namespace weft::reference {

void rmsnorm(const RmsNormArgs& args, Range rows, double* y) {
  const int64_t columns = args.columns;
  for (int64_t r = rows.begin; r < rows.end; ++r, y += columns) {
    const int64_t line = r / args.groups;
    const int64_t first = r % args.groups * columns;
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double x = element(args.x, line, first + c);
      squares += x * x;
    }
    const double rms = std::sqrt(squares / static_cast<double>(columns) + args.epsilon);
    for (int64_t c = 0; c < columns; ++c) {
      y[c] = element(args.x, line, first + c) / rms *
             (args.weight_offset + element(args.weight.data, args.weight.dtype, c));
      if (args.residual.data != nullptr) {
        y[c] = element(args.residual.data, args.residual.dtype,
                       line * args.residual.stride + first + c) +
               args.scale * y[c];
      }
    }
  }
}

}  // namespace weft::reference
