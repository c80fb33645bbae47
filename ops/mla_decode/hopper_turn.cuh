// RoPE in bf16 on sm_90a, as LatentCache::angles says.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/resident.cuh"

namespace weft::hopper {

__device__ inline __nv_bfloat162 as_pair(uint32_t bits) {
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
__device__ inline uint32_t bits_of(__nv_bfloat162 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

/// RoPE of eight pairs of elements, a and b, in bf16, each product and sum rounded.
__device__ inline void turn_halves(uint4& a, uint4& b, const uint4& cosines, const uint4& sines) {
  const auto turn = [](uint32_t& x, uint32_t& y, uint32_t cosine, uint32_t sine) {
    const __nv_bfloat162 first = as_pair(x);
    const __nv_bfloat162 second = as_pair(y);
    const __nv_bfloat162 c = as_pair(cosine);
    const __nv_bfloat162 s = as_pair(sine);
    x = bits_of(__hsub2_rn(__hmul2_rn(first, c), __hmul2_rn(second, s)));
    y = bits_of(__hadd2_rn(__hmul2_rn(second, c), __hmul2_rn(first, s)));
  };
  turn(a.x, b.x, cosines.x, sines.x);
  turn(a.y, b.y, cosines.y, sines.y);
  turn(a.z, b.z, cosines.z, sines.z);
  turn(a.w, b.w, cosines.w, sines.w);
}

}  // namespace weft::hopper
