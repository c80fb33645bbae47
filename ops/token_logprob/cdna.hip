// token_logprob: a workgroup a row, which it goes over once. Each thread keeps the largest of its
// logits and the sum of exponentials less that, which are merged at the end.
#include "ops/token_logprob/cdna.h"

#include "arch/cdna/math.hip.h"
#include "arch/cdna/reduce.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kAtOnce = 8;  ///< logits of a thread that are on their way together
constexpr int kWaves = kTokenLogprobThreads / kWaveLanes;
constexpr float kNothing = -__builtin_inff();

/// Of numbers of any sign over the wave; a NaN is passed over.
WEFT_GPU float wave_peak(float x) {
  x = row_reduce<Max>(x);
  float peak = x;
#pragma unroll
  for (int row = 0; row < kWaveLanes / kRowLanes; ++row) {
    const int other = __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), row * kRowLanes);
    peak = __builtin_fmaxf(peak, __builtin_bit_cast(float, other));
  }
  return peak;
}

/// e^(x - peak), and 0 of nothing at all rather than the NaN of a difference of infinities.
WEFT_GPU float weight_of(float x, float peak) { return x == kNothing ? 0 : exp_of(x - peak); }

}  // namespace

extern "C" __global__ __launch_bounds__(512, 2) void token_logprob(TokenLogprobParams p) {
  __shared__ float peaks[kWaves];
  __shared__ float partial[kWaves];
  const int64_t row = workgroup_index();
  const float* x = p.logits + row * p.stride;
  float peak = kNothing;
  float sum = 0;
  for (int first = thread_index(); first < p.columns; first += kTokenLogprobThreads * kAtOnce) {
    float v[kAtOnce];
    float next = peak;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int c = first + i * kTokenLogprobThreads;
      v[i] = c < p.columns ? x[c] : kNothing;
      next = __builtin_fmaxf(next, v[i]);
    }
    sum *= weight_of(peak, next);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum += weight_of(v[i], next);
    }
    peak = next;
  }
  const float of_wave = wave_peak(peak);
  if (lane_index() == 0) {
    peaks[wave_index()] = of_wave;
  }
  barrier();
  float highest = kNothing;
#pragma unroll
  for (const float each : peaks) {
    highest = __builtin_fmaxf(highest, each);
  }
  sum = workgroup_reduce<Sum>(sum * weight_of(peak, highest), partial, kWaves);
  if (thread_index() == 0) {
    constexpr float kLn2 = 0.693147182f;
    p.out[row] = x[p.tokens[row]] - highest - kLn2 * log2_of(sum);
  }
}
