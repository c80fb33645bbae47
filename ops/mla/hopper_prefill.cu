// mla for a chunk's rows on sm_90a: see hopper_prefill.h.
#include <algorithm>
#include <array>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/resident.cuh"
#include "base/divide.h"
#include "ops/hopper_f32.cuh"
#include "ops/mla/hopper_heads.cuh"
#include "ops/mla/hopper_prefill.h"
#include "ops/mla/hopper_turn.cuh"

namespace weft::hopper {
namespace {

constexpr int kAppendThreads = 128;

/// A block a row.
__global__ void __launch_bounds__(kAppendThreads)
    append_latents(const __grid_constant__ LatentAppendArgs args, int64_t first,
                   const __grid_constant__ RowPlaces places) {
  begin_in_turn();
  __shared__ float of_warps[kAppendThreads / 32];
  const auto row = static_cast<int64_t>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto rank = static_cast<int>(args.rank);
  const auto turned = static_cast<int>(args.turned);
  const float* x = static_cast<const float*>(args.x.data) + row * args.x.stride;
  float squares = 0;
  for (int i = 2 * thread; i < rank; i += 2 * kAppendThreads) {
    const float2 pair = load_pair(x + i);
    squares += pair.x * pair.x + pair.y * pair.y;
  }
  squares = warp_sum(squares);
  if (thread % 32 == 0) {
    of_warps[thread / 32] = squares;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (const float part : of_warps) {
    sum += part;
  }
  const float factor = 1 / sqrtf(sum / static_cast<float>(rank) + args.epsilon);
  const bool own = places.positions != nullptr;
  const int64_t position = own ? places.positions[row] : first + row;
  const int64_t to = (own ? places.sequences[row] * places.sequence_stride : 0) +
                     position * (args.rank + args.turned);
  for (int i = 2 * thread; i < rank; i += 2 * kAppendThreads) {
    const float2 pair = load_pair(x + i);
    store_pair(
        args.cache.keys, args.cache.dtype, to + i,
        {pair.x * factor * load_x1(args.norm, i), pair.y * factor * load_x1(args.norm, i + 1)});
  }
  for (int i = thread; i < turned / 2; i += kAppendThreads) {
    const int64_t angle = row * (turned / 2) + i;
    store_pair(args.cache.keys, args.cache.dtype, to + rank + 2 * i,
               turn(load_pair(x + rank + 2 * i), args.cosines[angle], args.sines[angle]));
  }
}

// --- products of each head ---

/// The part of queries that RoPE turns, which stands beside a head's columns.
struct HeadTurn {
  const float* cosines = nullptr;
  const float* sines = nullptr;
  int turned = 0;  ///< 0: there is none

  /// Of a head's rows [first, first + count), which follow k elements of a and n of the result.
  __device__ void operator()(const HeadProduct& p, int head, int first, int count) const {
    const int half = turned / 2;
    for (int i = static_cast<int>(threadIdx.x); i < count * half;
         i += static_cast<int>(blockDim.x)) {
      const int64_t row = first + i / half;
      const int pair = i % half;
      const float* const a = p.a + row * p.a_stride + head * p.a_pitch;
      store_pair(p.out.data, p.out.dtype, row * p.out.stride + head * p.out_pitch + p.n + 2 * pair,
                 turn(load_pair(a + p.k + 2 * pair), cosines[row * half + pair],
                      sines[row * half + pair]));
    }
  }
};

constexpr int kF32Rows = 16;
constexpr int kF32Columns = 32;
constexpr int kF32Depth = 32;
constexpr int kF32Threads = 128;

/// The same in f32, weights in any format: each sum one chain of multiply-adds in the order of k.
template <class W, bool kTransposed>
__global__ void __launch_bounds__(kF32Threads)
    multiply_heads_f32(const __grid_constant__ HeadProduct p, const __grid_constant__ HeadTurn by) {
  __shared__ float rows[kF32Rows][kF32Depth];
  __shared__ float weights[kF32Depth][kF32Columns + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * kF32Rows;
  const int first_column = static_cast<int>(blockIdx.x) * kF32Columns;
  if (first_column >= p.n) {
    by(p, head, first_row, min(kF32Rows, p.rows - first_row));
    return;
  }
  const float* const a = p.a + head * p.a_pitch;
  const W* const w = static_cast<const W*>(p.w.data) + head * p.w_pitch * p.w.stride;
  constexpr int kRowStep = kF32Threads / kF32Columns;
  float sums[kF32Rows / kRowStep] = {};
  for (int at = 0; at < p.k; at += kF32Depth) {
    __syncthreads();  // what was there before has been read
    for (int i = thread; i < kF32Rows * kF32Depth; i += kF32Threads) {
      const int row = first_row + i / kF32Depth;
      const int k = at + i % kF32Depth;
      rows[i / kF32Depth][i % kF32Depth] = row < p.rows && k < p.k ? a[row * p.a_stride + k] : 0.0f;
    }
    for (int i = thread; i < kF32Depth * kF32Columns; i += kF32Threads) {
      const int along = i % 32;  // neighbours in memory are a warp's
      const int k = kTransposed ? i / 32 : along;
      const int column = kTransposed ? along : i / 32;
      const bool there = at + k < p.k && first_column + column < p.n;
      const int64_t from = kTransposed ? (at + k) * p.w.stride + first_column + column
                                       : (first_column + column) * p.w.stride + at + k;
      weights[k][column] = there ? to_f32(w[from]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kF32Depth; ++k) {
      const float own = weights[k][thread % kF32Columns];
#pragma unroll
      for (int i = 0; i < kF32Rows / kRowStep; ++i) {
        sums[i] = fmaf(rows[thread / kF32Columns + i * kRowStep][k], own, sums[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kF32Rows / kRowStep; ++i) {
    const int row = first_row + thread / kF32Columns + i * kRowStep;
    const int column = first_column + thread % kF32Columns;
    if (row < p.rows && column < p.n) {
      store_x1(p.out.data, p.out.dtype, row * p.out.stride + head * p.out_pitch + column, sums[i]);
    }
  }
}

// --- attention ---

constexpr int kHeads = 16;  ///< of a block
constexpr int kKeys = 32;   ///< at a time
constexpr int kLanes = 8;   ///< threads of a head
constexpr int kAttentionThreads = kHeads * kLanes;
constexpr int kPad = 4;  ///< keeps the rows that lanes read in banks apart

constexpr int attention_bytes(int64_t row) {
  return static_cast<int>((kHeads + kKeys) * (row + kPad) + kHeads * (kKeys + kPad)) * 4;
}

template <class F>
__device__ float over_lanes(float x, const F& combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = combine(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}

/// Four elements of an array in f32 or bf16.
__device__ float4 load_four(const void* from, DType type, int64_t at) {
  return type == DType::f32 ? read_x4(static_cast<const float*>(from) + at)
                            : read_x4(static_cast<const uint16_t*>(from) + at);
}

/// A block has 16 heads of a row, in f32: softmax on the fly, 32 keys at a time, which are the
/// values too. A thread has of its head every eighth key's score, and of the result four columns in
/// each 32.
__global__ void __launch_bounds__(kAttentionThreads)
    attend_latents(const __grid_constant__ PrefillLatentAttention args, int64_t first,
                   const __grid_constant__ RowPlaces places, float score_scale) {
  extern __shared__ __align__(16) float shared[];
  const int row_size = static_cast<int>(args.rank + args.turned);
  const int stride = row_size + kPad;
  float* const queries = shared;
  float* const keys = queries + kHeads * stride;
  float* const weights = keys + kKeys * stride;
  const auto row = static_cast<int64_t>(blockIdx.x);
  const int first_head = static_cast<int>(blockIdx.y) * kHeads;
  const int heads = min(kHeads, static_cast<int>(args.heads) - first_head);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kLanes;
  const int own_head = thread / kLanes;
  const bool own = places.positions != nullptr;
  const auto length = static_cast<int>((own ? places.positions[row] : first + row) + 1);
  const int64_t cache = own ? places.sequences[row] * places.sequence_stride : 0;
  const int quads = row_size / 4;
  for (int i = thread; i < kHeads * quads; i += kAttentionThreads) {
    const int head = min(i / quads, heads - 1);  // heads that there are not repeat the last
    *reinterpret_cast<float4*>(queries + i / quads * stride + i % quads * 4) =
        load_four(args.q.data, args.q.dtype,
                  row * args.q.stride + int64_t{first_head + head} * row_size + i % quads * 4);
  }
  constexpr int kTiles = kMostLatentRank / (4 * kLanes);
  float4 sums[kTiles] = {};
  float peak = -INFINITY;  // of the scaled scores so far
  float total = 0;         // of exponentials, this thread's keys
  for (int begin = 0; begin < length; begin += kKeys) {
    const int count = min(kKeys, length - begin);
    __syncthreads();  // the keys before have been read
    for (int i = thread; i < kKeys * quads; i += kAttentionThreads) {
      const int key = i / quads;
      *reinterpret_cast<float4*>(keys + key * stride + i % quads * 4) =
          key < count ? load_four(args.cache.keys, args.cache.dtype,
                                  cache + int64_t{begin + key} * row_size + i % quads * 4)
                      : float4{};
    }
    __syncthreads();
    float scores[kKeys / kLanes] = {};
#pragma unroll 2
    for (int c = 0; c < row_size; c += 4) {
      const float4 q = read_x4(queries + own_head * stride + c);
#pragma unroll
      for (int j = 0; j < kKeys / kLanes; ++j) {
        scores[j] = dot_x4(q, read_x4(keys + (lane + kLanes * j) * stride + c), scores[j]);
      }
    }
    float highest = -INFINITY;
#pragma unroll
    for (int j = 0; j < kKeys / kLanes; ++j) {
      scores[j] = lane + kLanes * j < count ? scores[j] * score_scale : -INFINITY;
      highest = fmaxf(highest, scores[j]);
    }
    const float next =
        fmaxf(peak, over_lanes(highest, [](float a, float b) { return fmaxf(a, b); }));
    const float rescale = exp2f(peak - next);
    peak = next;
    total *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys / kLanes; ++j) {
      const float weight = exp2f(scores[j] - next);
      total += weight;
      weights[own_head * (kKeys + kPad) + lane + kLanes * j] = weight;
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int column = (t * kLanes + lane) * 4;
      if (t * kLanes * 4 < args.rank) {
        float4 sum = sums[t];
        sum = {sum.x * rescale, sum.y * rescale, sum.z * rescale, sum.w * rescale};
#pragma unroll 4
        for (int key = 0; key < kKeys; ++key) {
          const float weight = weights[own_head * (kKeys + kPad) + key];
          const float4 v = read_x4(keys + key * stride + min(column, row_size - 4));
          sum = {fmaf(weight, v.x, sum.x), fmaf(weight, v.y, sum.y), fmaf(weight, v.z, sum.z),
                 fmaf(weight, v.w, sum.w)};
        }
        sums[t] = sum;
      }
    }
  }
  const float factor = 1 / over_lanes(total, [](float a, float b) { return a + b; });
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int column = (t * kLanes + lane) * 4;
    if (column < args.rank && own_head < heads) {
      const float4 x = sums[t];
      *reinterpret_cast<float4*>(static_cast<float*>(args.out.data) + row * args.out.stride +
                                 (first_head + own_head) * args.rank +
                                 column) = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
    }
  }
}

// --- launches ---

template <bool kTransposed>
Status launch_heads(const HeadProduct& p, const HeadTurn& by, int64_t heads, Stream stream) {
  const auto native = static_cast<cudaStream_t>(stream.native);
  if (p.out.dtype == DType::bf16) {
    const auto launch = p.rows <= 16 ? launch_heads_tile<HeadTile<16, 64, kTransposed>, HeadTurn>
                                     : launch_heads_tile<HeadTile<64, 64, kTransposed>, HeadTurn>;
    return launch(p, by, by.turned > 0, static_cast<int>(heads), native);
  }
  return with_weights(p.w.dtype, [&](auto w) {
    return launch_kernel(multiply_heads_f32<decltype(w), kTransposed>,
                         {.blocks = ceil_div(p.n, kF32Columns) + (by.turned > 0 ? 1 : 0),
                          .blocks_y = static_cast<int>(heads),
                          .blocks_z = ceil_div(p.rows, kF32Rows),
                          .threads = kF32Threads,
                          .stream = native},
                         p, by);
  });
}

std::string_view refuse_heads(const LatentHeads& of, const Matrix& out) {
  if (is_fp8(of.w.dtype) || (out.dtype == DType::bf16 && of.w.dtype != DType::bf16) ||
      out.dtype == DType::f16) {
    return "results must be f32 and weights no codes, or both bf16";
  }
  if (of.rank % 8 != 0 || of.unturned % 8 != 0 || of.turned % 8 != 0 || of.value % 2 != 0 ||
      of.w.stride % 8 != 0 || out.stride % 2 != 0) {
    return "parts of rows and heads must be multiples of 8, and values even";
  }
  return {};
}

}  // namespace

std::string_view refuse_prefill_latents(const LatentQueriesArgs& args) {
  const std::string_view why = refuse_latents(args);
  return why.empty() ? refuse_heads(args.of, args.out) : why;
}
std::string_view refuse_prefill_latents(const LatentValuesArgs& args) {
  const std::string_view why = refuse_latents(args);
  return why.empty() ? refuse_heads(args.of, args.out) : why;
}

Status prefill_latent_append(const LatentAppendArgs& args, int64_t rows, int64_t first,
                             Stream stream, const RowPlaces& places) {
  return launch_kernel(append_latents,
                       {.blocks = static_cast<int>(rows),
                        .threads = kAppendThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, first, places);
}

Status prefill_latent_queries(const LatentQueriesArgs& args, int64_t rows, Stream stream) {
  const LatentHeads& of = args.of;
  return launch_heads<true>({.a = static_cast<const float*>(args.q.data),
                             .a_stride = args.q.stride,
                             .a_pitch = of.unturned + of.turned,
                             .w = of.w,
                             .w_pitch = of.key_row(1),
                             .n = static_cast<int>(of.rank),
                             .k = static_cast<int>(of.unturned),
                             .out = args.out,
                             .out_pitch = of.rank + of.turned,
                             .rows = static_cast<int>(rows)},
                            {args.cosines, args.sines, static_cast<int>(of.turned)}, of.heads,
                            stream);
}

Status prefill_latent_values(const LatentValuesArgs& args, int64_t rows, Stream stream) {
  const LatentHeads& of = args.of;
  ConstMatrix w = of.w;
  w.data = static_cast<const std::byte*>(w.data) +
           of.value_row(0) * w.stride * static_cast<int64_t>(size_of(w.dtype));
  return launch_heads<false>({.a = static_cast<const float*>(args.a.data),
                              .a_stride = args.a.stride,
                              .a_pitch = args.pitch,
                              .w = w,
                              .w_pitch = of.key_row(1),
                              .n = static_cast<int>(of.value),
                              .k = static_cast<int>(of.rank),
                              .out = args.out,
                              .out_pitch = of.value,
                              .rows = static_cast<int>(rows)},
                             {}, of.heads, stream);
}

Status prefill_latent_attention(const PrefillLatentAttention& args, int64_t rows, int64_t first,
                                Stream stream, const RowPlaces& places) {
  if (is_mla_decode(args)) {
    return attend_as_mla_decode(args, rows, first, stream, places);
  }
  constexpr float kLog2E = 1.4426950408889634f;
  return launch_kernel(attend_latents,
                       {.blocks = static_cast<int>(rows),
                        .blocks_y = static_cast<int>(ceil_div(args.heads, int64_t{kHeads})),
                        .threads = kAttentionThreads,
                        .shared_bytes = attention_bytes(args.rank + args.turned),
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, first, places, args.scale * kLog2E);
}

Result<size_t> prefill_latent_workspace(const PrefillLatentAttention& args, int64_t rows,
                                        Stream stream) {
  return is_mla_decode(args) ? workspace_as_mla_decode(args, rows, stream)
                             : Result<size_t>(size_t{0});
}

}  // namespace weft::hopper
