#include <cmath>

#include "ops/activation_reference.h"
#include "ops/linear/op.h"

namespace weft::reference {
void linear(const LinearArgs& args, Range rows, Range columns, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = columns.begin; c < columns.end; ++c) {
      double sum = args.bias.data == nullptr ? 0 : element(args.bias.data, args.bias.dtype, c);
      for (int64_t i = 0; i < args.k; ++i) {
        sum += element(args.a.data, args.a.dtype, r * args.a.stride + i) *
               element(args.w.data, args.w.dtype, c * args.w.stride + i);
      }
      const double value = activate(args.activation, args.alpha * sum);
      *out++ = args.soft_cap > 0 ? args.soft_cap * std::tanh(value / args.soft_cap) : value;
    }
  }
}

}  // namespace weft::reference
