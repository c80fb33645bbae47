// rmsnorm on a resident CTA. The reduction's order is fixed: the bits repeat.
#pragma once

#include "ops/linear/hopper.cuh"

namespace weft::hopper {

/// Four weights, which are stored less `offset`.
__device__ inline float4 with_offset(float4 w, float offset) {
  return {w.x + offset, w.y + offset, w.z + offset, w.w + offset};
}
__device__ inline float4 load_weight4(const __nv_bfloat16* weight, int i, float offset) {
  return with_offset(widen4(load_kept(reinterpret_cast<const uint2*>(weight) + i)), offset);
}

__device__ inline float squares_of(float4 x) {
  return (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
}

/// 1 / sqrt(mean of squares + epsilon), within 2^-21 of it: exact division would be a call.
__device__ inline float norm_factor(float squares, int columns, float epsilon) {
  return rsqrtf(__fdividef(squares, static_cast<float>(columns)) + epsilon);
}

}  // namespace weft::hopper
