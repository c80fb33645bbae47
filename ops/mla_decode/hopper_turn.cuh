// RoPE in bf16 on sm_90a, as LatentCache::angles says.
#pragma once

#include <cstdint>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/resident.cuh"

namespace weft::hopper {

/// RoPE of eight pairs of elements, a and b, in bf16, each product and sum rounded.
__device__ inline void turn_halves(uint4& a, uint4& b, const uint4& cosines, const uint4& sines) {
  const auto times = [](uint32_t x, uint32_t y) {
    return pack_bf16x2(bf16_low(x) * bf16_low(y), bf16_high(x) * bf16_high(y));
  };
  const auto turn = [&](uint32_t& x, uint32_t& y, uint32_t cosine, uint32_t sine) {
    const uint32_t parts[4] = {times(x, cosine), times(y, sine), times(y, cosine), times(x, sine)};
    x = pack_bf16x2(bf16_low(parts[0]) - bf16_low(parts[1]),
                    bf16_high(parts[0]) - bf16_high(parts[1]));
    y = pack_bf16x2(bf16_low(parts[2]) + bf16_low(parts[3]),
                    bf16_high(parts[2]) + bf16_high(parts[3]));
  };
  turn(a.x, b.x, cosines.x, sines.x);
  turn(a.y, b.y, cosines.y, sines.y);
  turn(a.z, b.z, cosines.z, sines.z);
  turn(a.w, b.w, cosines.w, sines.w);
}

}  // namespace weft::hopper
