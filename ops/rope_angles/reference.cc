#include <cmath>

#include "ops/rope_angles/op.h"

namespace weft::reference {

void rope_angles(const RopeAnglesArgs& args, Range rows, double* cosines, double* sines) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t i = 0; i < args.half; ++i) {
      // The rounding of the product to f32 is part of the definition.
      const float angle = static_cast<float>(args.positions[r]) * args.inverse_frequencies[i];
      *cosines++ = args.scale * std::cos(static_cast<double>(angle));
      *sines++ = args.scale * std::sin(static_cast<double>(angle));
    }
  }
}

}  // namespace weft::reference
