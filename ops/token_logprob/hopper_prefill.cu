// token_logprob on sm_90a: a block a row, which it goes over once. Each thread keeps the largest of
// its logits and the sum of exponentials less that, which are merged at the end.
#include "arch/hopper/launch.cuh"
#include "ops/hopper_rows.cuh"
#include "ops/token_logprob/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 512;
constexpr int kAtOnce = 8;  ///< logits of a thread that are on their way together

/// A sum of exponentials, less the largest exponent: {largest, sum}.
struct MergeSums {
  __device__ float2 operator()(float2 a, float2 b) const {
    const float peak = fmaxf(a.x, b.x);
    // Where nothing was seen the weight is 0, not the NaN of a difference of infinities; a sum that
    // is NaN stays it.
    const float of_a = a.x == -INFINITY ? 0 : expf(a.x - peak);
    const float of_b = b.x == -INFINITY ? 0 : expf(b.x - peak);
    return {peak, a.y * of_a + b.y * of_b};
  }
};

__global__ void __launch_bounds__(kThreads)
    token_logprob_rows(const __grid_constant__ TokenLogprobArgs args) {
  begin_in_turn();
  __shared__ RowSlots<float2> slots;
  const int64_t row = blockIdx.x;
  const float* x = static_cast<const float*>(args.logits.data) + row * args.logits.stride;
  const auto columns = static_cast<int>(args.columns);
  float2 sums = {-INFINITY, 0};
  for (int first = static_cast<int>(threadIdx.x); first < columns; first += kThreads * kAtOnce) {
    float v[kAtOnce];
    float peak = sums.x;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int c = first + i * kThreads;
      v[i] = c < columns ? x[c] : -INFINITY;
      peak = fmaxf(peak, v[i]);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      sum += v[i] == -INFINITY ? 0 : expf(v[i] - peak);
    }
    sums = MergeSums{}(sums, {peak, sum});
  }
  sums = over_row(sums, 1, slots, MergeSums{});
  if (threadIdx.x == 0) {
    args.out[row] = x[args.tokens[row]] - sums.x - logf(sums.y);
  }
}

}  // namespace

Status prefill_token_logprob(const TokenLogprobArgs& args, int64_t rows, Stream stream) {
  return launch_kernel(token_logprob_rows,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args);
}

}  // namespace weft::hopper
