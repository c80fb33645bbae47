// Attention sinks on sm_90a: what joins a row's softmax when all of its keys have.
#pragma once

#include "ops/hopper_f32.cuh"

namespace weft::hopper {

inline constexpr float kLog2E = 1.4426950408889634f;

/// What a row's sum of values is multiplied with in the end. Its weights are 2^(score - peak), and
/// `sum` is theirs; scores and peak with log2(e).
__device__ inline float softmax_factor(const ConstVector& sinks, int64_t head, float sum,
                                       float peak) {
  if (sinks.data == nullptr) {
    return 1 / sum;
  }
  const float sink = load_x1(sinks, head) * kLog2E;
  const float highest = fmaxf(peak, sink);
  const float keep = exp2f(peak - highest);
  return keep / (sum * keep + exp2f(sink - highest));
}

}  // namespace weft::hopper
