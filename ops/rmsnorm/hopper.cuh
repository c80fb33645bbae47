// rmsnorm on a resident CTA. The reduction's order is fixed: the bits repeat.
#pragma once

#include "ops/linear/hopper.cuh"

namespace weft::hopper {

/// Four elements of a norm's weight.
__device__ inline float4 load_weight4(const __nv_bfloat16* weight, int i) {
  const uint2 w = __ldg(reinterpret_cast<const uint2*>(weight) + i);
  return {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)};
}

/// A thread's part of a norm's weight, loaded before the row is there.
struct NormWeight {
  static constexpr int kHeld = 4;  // of four elements each: up to 8192 columns
  const __nv_bfloat16* weight;
  uint2 held[kHeld];

  __device__ void load(const Team& team, const __nv_bfloat16* from, int columns) {
    weight = from;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = team.thread + j * Team::kThreads;
      held[j] = 4 * i < columns ? __ldg(reinterpret_cast<const uint2*>(from) + i) : uint2{};
    }
  }
};

/// Calls store(i, y) with elements 4i .. 4i+3 of the norm of a row of `columns` (a multiple of 4)
/// f32 in global memory. `round` alternates the team's scratch.
template <class Store>
__device__ void norm_row(const Team& team, const float* row, const NormWeight& weight, int columns,
                         float epsilon, int round, Store store) {
  constexpr int kHeld = NormWeight::kHeld;
  float4 held[kHeld];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = team.thread + j * Team::kThreads;
    held[j] = 4 * i < columns ? __ldcg(reinterpret_cast<const float4*>(row) + i) : float4{};
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    squares += (held[j].x * held[j].x + held[j].y * held[j].y) +
               (held[j].z * held[j].z + held[j].w * held[j].w);
  }
  for (int i = team.thread + kHeld * Team::kThreads; 4 * i < columns; i += Team::kThreads) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(row) + i);
    squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
  }
  const float mean = team_sum(team, squares, round) / static_cast<float>(columns);
  const float factor = 1.0f / sqrtf(mean + epsilon);
  const auto put = [&](int i, float4 x, float4 w) {
    store(i,
          float4{x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w});
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = team.thread + j * Team::kThreads;
    if (4 * i < columns) {
      const uint2 w = weight.held[j];
      put(i, held[j], {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)});
    }
  }
  for (int i = team.thread + kHeld * Team::kThreads; 4 * i < columns; i += Team::kThreads) {
    put(i, __ldcg(reinterpret_cast<const float4*>(row) + i), load_weight4(weight.weight, i));
  }
}

}  // namespace weft::hopper
