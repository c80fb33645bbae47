// attention of a step's rows, each of a sequence of its own: a block for each row and KV head, with
// the resident kernel's parts.
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/attention/hopper.cuh"
#include "ops/attention/hopper_prefill.h"
#include "ops/attention/hopper_sinks.cuh"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {
namespace {

/// kDim 0: not by mma.
template <int kDim, bool kF32>
__global__ void __launch_bounds__(Team::kThreads)
    step_attention_rows(const __grid_constant__ AttentionArgs args,
                        const __grid_constant__ RowPlaces places) {
  extern __shared__ __align__(16) float scratch[];
  begin_in_turn();
  const auto thread = static_cast<int>(threadIdx.x);
  const Team team{thread, thread >> 5, thread & 31, nullptr};
  const auto row = static_cast<int64_t>(blockIdx.x);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const int dim = kDim != 0 ? kDim : static_cast<int>(args.head_dim);
  const auto group = static_cast<int>(args.query_heads / args.kv_heads);
  const int64_t head = int64_t{kv_head} * group;  // the first
  const int64_t q = row * args.q.stride + head * dim;
  for (int i = thread; i < group * dim; i += Team::kThreads) {
    const float x = args.q.dtype == DType::f32
                        ? static_cast<const float*>(args.q.data)[q + i]
                        : __bfloat162float(static_cast<const __nv_bfloat16*>(args.q.data)[q + i]);
    scratch[i] = x * args.scale;
  }
  team.sync();

  const int last = places.positions[row] + 1;
  const int first = args.window > 0 ? max(0, last - static_cast<int>(args.window)) : 0;
  const int64_t offset =
      (places.sequences[row] * places.sequence_stride + kv_head * args.cache.head_stride) *
      (kF32 ? 4 : 2);
  const char* keys = static_cast<const char*>(args.cache.keys) + offset;
  const char* values = static_cast<const char*>(args.cache.values) + offset;
  float* parts = scratch + group * dim;
  constexpr int kAtOnce = kDim != 0 ? kMmaHeads : kHeadsAtOnce;
  const NewRow none{-1, nullptr, nullptr};
#pragma unroll 1
  for (int at_once = 0; at_once < group; at_once += kAtOnce) {
    const int heads = min(kAtOnce, group - at_once);
    const auto store = [&](int h, int d, float x, float y, float maximum, float total) {
      const float factor = softmax_factor(args.sinks, head + at_once + h, total, maximum * kLog2E);
      const int64_t at = row * args.out.stride + (head + at_once + h) * dim + d;
      store_x1(args.out.data, args.out.dtype, at, x * factor);
      store_x1(args.out.data, args.out.dtype, at + 1, y * factor);
    };
    const float* queries = scratch + at_once * dim;
    if constexpr (kDim != 0) {
      const int pitch = min(kAtOnce, group);
      WarpAttention<kDim, kF32> warp(team, keys, values, first, last);
      warp.ask(-1);
      warp.run(queries, heads, none, parts + team.warp * pitch * (dim + 2));
      merge_parts(team, parts, pitch, heads, dim, store);
    } else {
      attention_range<kF32>(team, queries, keys, values, none, dim, heads, first, last,
                            args.soft_cap, parts, store);
    }
  }
}

}  // namespace

Status step_attention(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                      const Workspace& /*workspace*/, Stream stream) {
  const bool f32 = args.cache.dtype == DType::f32;
  const bool mma = args.soft_cap == 0;
  const auto kernel = mma && args.head_dim == 64 && f32     ? step_attention_rows<64, true>
                      : mma && args.head_dim == 64          ? step_attention_rows<64, false>
                      : mma && args.head_dim == 128 && !f32 ? step_attention_rows<128, false>
                      : f32                                 ? step_attention_rows<0, true>
                                                            : step_attention_rows<0, false>;
  return launch_kernel(kernel,
                       {.blocks = static_cast<int>(rows),
                        .blocks_y = static_cast<int>(args.kv_heads),
                        .threads = Team::kThreads,
                        .shared_bytes = static_cast<int>(attention_scratch_bytes(
                            Team::kWarps, args.head_dim, args.query_heads / args.kv_heads)),
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, places);
}

}  // namespace weft::hopper
