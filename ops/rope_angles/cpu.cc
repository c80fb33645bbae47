// rope_angles on the CPU: the C library's double functions, rounded once. About 20 ns a pair and
// once a step for all layers, so a vector version would not show.
#include <cmath>

#include "ops/rope_angles/op.h"

namespace weft::cpu {

void rope_angles(const RopeAnglesArgs& args, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float position = static_cast<float>(args.positions[r]);
    for (int64_t i = 0; i < args.half; ++i) {
      const float product = position * args.inverse_frequencies[i];
      const double angle = product;
      args.cosines[r * args.half + i] = args.scale * static_cast<float>(std::cos(angle));
      args.sines[r * args.half + i] = args.scale * static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace weft::cpu
