// rmsnorm on a resident CTA. The reduction's order is fixed: the bits repeat.
#pragma once

#include "ops/linear/hopper.cuh"

namespace weft::hopper {

/// Four elements of a norm's weight.
__device__ inline float4 load_weight4(const __nv_bfloat16* weight, int i) {
  const uint2 w = __ldg(reinterpret_cast<const uint2*>(weight) + i);
  return {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)};
}

/// Calls store(i, y) with elements 4i .. 4i+3 of the norm of a row of `columns` (a multiple of 4)
/// f32 in global memory. `round` alternates the team's scratch.
template <class Store>
__device__ void norm_row(const Team& team, const float* row, const __nv_bfloat16* weight,
                         int columns, float epsilon, int round, Store store) {
  constexpr int kHeld = 4;  // of four elements each, kept in registers: up to 8192 columns
  float4 held[kHeld];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = team.thread + j * Team::kThreads;
    if (4 * i < columns) {
      held[j] = __ldcg(reinterpret_cast<const float4*>(row) + i);
      squares += (held[j].x * held[j].x + held[j].y * held[j].y) +
                 (held[j].z * held[j].z + held[j].w * held[j].w);
    }
  }
  for (int i = team.thread + kHeld * Team::kThreads; 4 * i < columns; i += Team::kThreads) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(row) + i);
    squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
  }
  const float mean = team_sum(team, squares, round) / static_cast<float>(columns);
  const float factor = 1.0f / sqrtf(mean + epsilon);
  const auto put = [&](int i, float4 x) {
    const float4 w = load_weight4(weight, i);
    store(i,
          float4{x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w});
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = team.thread + j * Team::kThreads;
    if (4 * i < columns) {
      put(i, held[j]);
    }
  }
  for (int i = team.thread + kHeld * Team::kThreads; 4 * i < columns; i += Team::kThreads) {
    put(i, __ldcg(reinterpret_cast<const float4*>(row) + i));
  }
}

/// Norms of groups [first, last) of `columns` (a multiple of 4) each, in place, a warp a group.
__device__ inline void norm_groups(const Team& team, float* x, const __nv_bfloat16* weight,
                                   int columns, int first, int last, float epsilon) {
  for (int group = first + team.warp; group < last; group += Team::kWarps) {
    float* row = x + static_cast<int64_t>(group) * columns;
    float squares = 0;
    for (int i = team.lane; 4 * i < columns; i += 32) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(row) + i);
      squares += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(columns) + epsilon);
    for (int i = team.lane; 4 * i < columns; i += 32) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(row) + i);
      const float4 w = load_weight4(weight, i);
      __stcg(reinterpret_cast<float4*>(row) + i, float4{v.x * factor * w.x, v.y * factor * w.y,
                                                        v.z * factor * w.z, v.w * factor * w.w});
    }
  }
}

}  // namespace weft::hopper
