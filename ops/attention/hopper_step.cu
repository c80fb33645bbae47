// attention of a step's rows, each of a sequence of its own: a block for each row and KV head, with
// the resident kernel's parts, or, of few rows, a cluster of blocks which share the keys.
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/attention/hopper.cuh"
#include "ops/attention/hopper_prefill.h"
#include "ops/attention/hopper_sinks.cuh"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {
namespace {

/// Blocks of a row and KV head, at most.
constexpr int kMostShares = 8;
/// Keys that are not shared further: a block's warps have that many at once.
constexpr int kLeastShare = Team::kWarps * 16;

/// Calls store(h, d, first, second, maximum, total) for this block's share of the pairs of elements
/// d, d + 1 of all heads, with the sums of all blocks of the cluster, which each has at `own`
/// [heads][dim + 2], as merge_parts() takes them. Begins and ends with a barrier of the cluster.
template <class Store>
__device__ void merge_blocks(const Team& team, const float* own, int heads, int dim, Store store) {
  const auto blocks = static_cast<int>(cluster_size());
  const auto rank = static_cast<int>(cluster_rank());
  cluster_sync();
  for (int i = rank * Team::kThreads + team.thread; 2 * i < heads * dim;
       i += blocks * Team::kThreads) {
    const int h = 2 * i / dim;
    const int d = 2 * i - h * dim;
    const uint32_t part = smem_address(own + h * (dim + 2));
    const auto end_of = [&](int b) { return load_remote_pair(cluster_address(part + dim * 4, b)); };
    float highest = -__builtin_inff();
    for (int b = 0; b < blocks; ++b) {
      highest = fmaxf(highest, end_of(b).x);
    }
    float2 sum{};
    float all = 0;
    for (int b = 0; b < blocks; ++b) {
      const float2 end = end_of(b);
      const float factor = end.x == -__builtin_inff() ? 0.0f : __expf(end.x - highest);
      const float2 x = load_remote_pair(cluster_address(part + d * 4, b));
      sum.x += x.x * factor;
      sum.y += x.y * factor;
      all += end.y * factor;
    }
    store(h, d, sum.x, sum.y, highest, all);
  }
  cluster_sync();
}

/// kDim 0: not by mma.
template <int kDim, bool kF32>
__global__ void __launch_bounds__(Team::kThreads)
    step_attention_rows(const __grid_constant__ AttentionArgs args,
                        const __grid_constant__ RowPlaces places) {
  extern __shared__ __align__(16) float scratch[];
  begin_in_turn();
  const auto thread = static_cast<int>(threadIdx.x);
  const Team team{thread, thread >> 5, thread & 31, nullptr};
  const auto shares = static_cast<int>(cluster_size());
  const auto row = static_cast<int64_t>(blockIdx.x) / shares;
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

  int last = places.positions[row] + 1;
  int first = args.window > 0 ? max(0, last - static_cast<int>(args.window)) : 0;
  if (shares > 1) {
    const int share = ceil_div(ceil_div(last - first, shares), kLeastShare) * kLeastShare;
    first += static_cast<int>(cluster_rank()) * share;
    last = min(last, first + share);
  }
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
    const auto finish = [&](int h, int d, float x, float y, float maximum, float total) {
      const float factor = softmax_factor(args.sinks, head + at_once + h, total, maximum * kLog2E);
      const int64_t at = row * args.out.stride + (head + at_once + h) * dim + d;
      store_x1(args.out.data, args.out.dtype, at, x * factor);
      store_x1(args.out.data, args.out.dtype, at + 1, y * factor);
    };
    float* const own = parts + Team::kWarps * attention_part(dim, group);
    const auto store = [&](int h, int d, float x, float y, float maximum, float total) {
      if (shares == 1) {
        finish(h, d, x, y, maximum, total);
        return;
      }
      float* const part = own + h * (dim + 2);
      *reinterpret_cast<float2*>(part + d) = {x, y};
      if (d == 0) {
        *reinterpret_cast<float2*>(part + dim) = {maximum, total};
      }
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
    if (shares > 1) {
      merge_blocks(team, own, heads, dim, finish);
    }
  }
}

/// Blocks that share a row's keys of a KV head: as many as there are multiprocessors for.
int shares_of(const AttentionArgs& args, int64_t rows, const DeviceInfo& device) {
  int shares = 1;
  while (shares < kMostShares && 2 * shares * rows * args.kv_heads <= device.units) {
    shares *= 2;
  }
  return shares;
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
  const int shares = shares_of(args, rows, stream.device->info());
  const int64_t group = args.query_heads / args.kv_heads;
  return launch_kernel(kernel,
                       {.blocks = static_cast<int>(rows) * shares,
                        .blocks_y = static_cast<int>(args.kv_heads),
                        .threads = Team::kThreads,
                        .cluster = shares,
                        .shared_bytes = static_cast<int>(
                            attention_scratch_bytes(Team::kWarps, args.head_dim, group) +
                            attention_part(args.head_dim, group) * 4),
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, places);
}

}  // namespace weft::hopper
