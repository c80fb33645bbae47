#include <cmath>

#include "ops/layernorm/op.h"

namespace weft::reference {

void layernorm(const LayerNormArgs& args, Range rows, double* y) {
  const auto columns = static_cast<double>(args.columns);
  for (int64_t r = rows.begin; r < rows.end; ++r, y += args.columns) {
    double mean = 0;
    for (int64_t c = 0; c < args.columns; ++c) {
      mean += element(args.x, r, c) / columns;
    }
    double variance = 0;
    for (int64_t c = 0; c < args.columns; ++c) {
      const double difference = element(args.x, r, c) - mean;
      variance += difference * difference / columns;
    }
    for (int64_t c = 0; c < args.columns; ++c) {
      y[c] = (element(args.x, r, c) - mean) / std::sqrt(variance + args.epsilon) *
                 element(args.weight.data, args.weight.dtype, c) +
             element(args.bias.data, args.bias.dtype, c);
    }
  }
}

}  // namespace weft::reference
