#include "base/splitmix.h"
#include "ops/sample/op.h"

namespace weft {

float uniform_draw(uint64_t seed, uint64_t draw) {
  // Over a state that both numbers reach.
  const uint64_t bits = splitmix(splitmix(seed + kSplitMixStep) + draw * kSplitMixStep);
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

}  // namespace weft
