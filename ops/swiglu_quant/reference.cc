#include <cmath>

#include "ops/swiglu_quant/op.h"

namespace weft::reference {

void swiglu_quant(const SwigluQuantArgs& args, Range rows, double* v) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < args.columns; ++c) {
      const double gate = element(args.gate, r, c);
      *v++ = gate / (1 + std::exp(-gate)) * element(args.up, r, c);
    }
  }
}

}  // namespace weft::reference
