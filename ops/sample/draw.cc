#include "ops/sample/op.h"

namespace weft {

float uniform_draw(uint64_t seed, uint64_t draw) {
  // SplitMix64's finaliser (Steele et al. 2014) over a state that both numbers reach.
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  };
  const uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15) + draw * 0x9e3779b97f4a7c15);
  return static_cast<float>(bits >> 40) * 0x1p-24f;
}

}  // namespace weft
