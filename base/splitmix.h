// SplitMix64 (Steele, Lea, Flood 2014): a counter that steps, and what mixes it into random bits.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;

/// Its finaliser: every bit of the result depends on every bit of z.
constexpr uint64_t splitmix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace weft
