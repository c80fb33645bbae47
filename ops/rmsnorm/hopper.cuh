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

/// Calls store(i, y) with elements 4i .. 4i+3 of the norm of a row of `columns` (a multiple of 4),
/// whose elements carry `tag`. `round` alternates the team's scratch.
template <class Late, class Store>
__device__ void norm_row(const Team& team, const Tagged* row, uint32_t tag,
                         const NormWeight& weight, int columns, float epsilon, int round,
                         Late& late, Store store) {
  constexpr int kHeld = NormWeight::kHeld;
  float2 held[2 * kHeld] = {};
  uint32_t pending = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    pending |= 4 * (team.thread + j * Team::kThreads) < columns ? 3u << (2 * j) : 0;
  }
  const Tagged* mine = row + 4 * team.thread;
  await_pairs(
      held, pending, tag, [&](int j) { return mine + j / 2 * 4 * Team::kThreads + j % 2 * 2; },
      late);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < 2 * kHeld; ++j) {
    squares += held[j].x * held[j].x + held[j].y * held[j].y;
  }
  const int beyond = team.thread + kHeld * Team::kThreads;  // what registers do not hold
#pragma unroll 1
  for (int i = beyond; 4 * i < columns; i += Team::kThreads) {
    float2 x[2] = {};
    await_pairs(
        x, 3, tag, [&](int j) { return row + 4 * i + 2 * j; }, late);
    squares += (x[0].x * x[0].x + x[0].y * x[0].y) + (x[1].x * x[1].x + x[1].y * x[1].y);
  }
  const float mean = team_sum(team, squares, round) / static_cast<float>(columns);
  const float factor = 1.0f / sqrtf(mean + epsilon);
  const auto put = [&](int i, float2 x, float2 y, float4 w) {
    store(i,
          float4{x.x * factor * w.x, x.y * factor * w.y, y.x * factor * w.z, y.y * factor * w.w});
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = team.thread + j * Team::kThreads;
    if (4 * i < columns) {
      const uint2 w = weight.held[j];
      put(i, held[2 * j], held[2 * j + 1],
          {bf16_low(w.x), bf16_high(w.x), bf16_low(w.y), bf16_high(w.y)});
    }
  }
#pragma unroll 1
  for (int i = beyond; 4 * i < columns; i += Team::kThreads) {
    float2 x[2] = {};
    await_pairs(
        x, 3, tag, [&](int j) { return row + 4 * i + 2 * j; }, late);
    put(i, x[0], x[1], load_weight4(weight.weight, i));
  }
}

}  // namespace weft::hopper
