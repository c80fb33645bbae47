// A cluster of blocks a row, each with a part of the vocabulary; the first of them has the last
// word.
#include "engine/hopper/best_tokens.h"

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/launch.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = 512;
constexpr int kBlocks = 8;  // of a row

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
  __shared__ float2 of_block;  // the best logit, and its token's bits
  const auto thread = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int>(blockIdx.x) / kBlocks;
  const auto rank = static_cast<int>(cluster_rank());
  float best = -__builtin_inff();
  int token = args.vocabulary;
#pragma unroll 8
  for (int i = rank * kThreads + thread; i < args.vocabulary; i += kBlocks * kThreads) {
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
      of_block = {best, __int_as_float(token)};
    }
  }
  cluster_sync();
  if (rank == 0 && thread < 32) {
    const float2 others = thread < kBlocks
                              ? load_remote_pair(cluster_address(smem_address(&of_block), thread))
                              : float2{-__builtin_inff(), __int_as_float(args.vocabulary)};
    best = others.x;
    token = __float_as_int(others.y);
    of_warp();
    if (thread == 0) {
      token = token < args.vocabulary ? token : 0;
      args.tokens[row] = token;
      ++args.positions[row];
      *static_cast<volatile int32_t*>(args.report + row) = token;
    }
  }
  cluster_sync();  // the others' shared memory is theirs until it has been read
}

}  // namespace

Status launch_best_tokens(const BestTokens& args, int rows, cudaStream_t stream) {
  return launch_kernel(
      best_tokens_rows,
      {.blocks = rows * kBlocks, .threads = kThreads, .cluster = kBlocks, .stream = stream}, args);
}

}  // namespace weft::hopper
