// A block a row.
#include "engine/hopper/best_tokens.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 512;

/// Of equal logits the first token; NaN is never the best.
__device__ void offer(float& best, int& token, float logit, int id) {
  if (logit > best || (logit == best && id < token)) {
    best = logit;
    token = id;
  }
}

__global__ void __launch_bounds__(kThreads)
    best_tokens_rows(const __grid_constant__ BestTokens args) {
  __shared__ float logits[kThreads / 32];
  __shared__ int tokens[kThreads / 32];
  const auto thread = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int>(blockIdx.x);
  float best = -__builtin_inff();
  int token = args.vocabulary;
#pragma unroll 8
  for (int i = thread; i < args.vocabulary; i += kThreads) {
    offer(best, token, args.logits[row * args.stride + i], i);
  }
  const auto of_warp = [&] {
    for (int distance = 16; distance > 0; distance /= 2) {
      const float logit = __shfl_xor_sync(~0u, best, distance);
      const int id = __shfl_xor_sync(~0u, token, distance);
      offer(best, token, logit, id);
    }
  };
  of_warp();
  if (thread % 32 == 0) {
    logits[thread / 32] = best;
    tokens[thread / 32] = token;
  }
  __syncthreads();
  if (thread < 32) {
    const bool there = thread < kThreads / 32;
    best = there ? logits[thread] : -__builtin_inff();
    token = there ? tokens[thread] : args.vocabulary;
    of_warp();
    if (thread == 0) {
      token = token < args.vocabulary ? token : 0;
      args.tokens[row] = token;
      ++args.positions[row];
      *static_cast<volatile int32_t*>(args.report + row) = token;
    }
  }
}

}  // namespace

cudaError_t launch_best_tokens(const BestTokens& args, int rows, cudaStream_t stream) {
  best_tokens_rows<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace weft::hopper
