// attention of many rows on sm_90a where queries are f32: softmax on the fly as in
// hopper_prefill.cu, everything in f32 on the CUDA cores. A block has 32 rows of a head and goes
// through the keys 64 at a time. A thread has 4 rows, eight apart, by 4 keys, 16 apart, of the
// scores, and of the result the same rows by four neighbouring columns in each 64. The 16 threads
// that share rows are half a warp: what they tell one another needs no barrier of the block.
#include <algorithm>

#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "ops/attention/hopper_prefill.h"
#include "ops/attention/hopper_sinks.cuh"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {
namespace {

constexpr int kRows = 32;
constexpr int kKeys = 64;
constexpr int kLanes = 16;  ///< threads that share rows
constexpr int kThreads = 128;
constexpr int kThreadRows = 4;
constexpr int kThreadKeys = kKeys / kLanes;
constexpr int kRowStep = kThreads / kLanes;
static_assert(kRowStep * kThreadRows == kRows);
constexpr int kPad = 4;  ///< keeps the rows that a quarter of a warp reads in banks apart

/// kDim: columns of a head, filled up with zeros.
template <int kDim>
struct Shared {
  float queries[kRows][kDim + kPad];
  float keys[kKeys][kDim + kPad];
  float values[kKeys][kDim];
  float weights[kRows][kKeys + kPad];  ///< of the keys, by row
};

/// Fills a tile with rows of Quads, load(r, c) those of row r from column c on. Zeros where there
/// is no row, and behind its columns.
template <class Quad, int kCount, int kStride, class Load>
__device__ void bring(float (&to)[kCount][kStride], int quads, int count, int columns,
                      const Load& load) {
  constexpr int kAtOnce = 8;  // loads on their way together
  for (int begin = static_cast<int>(threadIdx.x); begin < kCount * quads;
       begin += kAtOnce * kThreads) {
    Quad values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int r = (begin + i * kThreads) / quads;
      const int c = (begin + i * kThreads) % quads * 4;
      values[i] = r < count && c < columns ? load(r, c) : Quad{};
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int r = (begin + i * kThreads) / quads;
      const int c = (begin + i * kThreads) % quads * 4;
      if (r < kCount) {
        *reinterpret_cast<float4*>(&to[r][c]) = widen(values[i]);
      }
    }
  }
}

template <class F>
__device__ float over_row_lanes(float x, const F& combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = combine(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}

/// The cache is Quads. `score_scale`: with log2(e), of scores or, where there is a soft cap, of
/// tanh(); `first`: position of row 0.
template <int kDim, class Quad, bool kCapped>
__global__ void __launch_bounds__(kThreads)
    attention_f32(const __grid_constant__ AttentionArgs args, const __grid_constant__ KeyRows cache,
                  int rows, int first, float score_scale) {
  constexpr int kTiles = kDim / 64;  ///< of columns of the result
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  const int heads = static_cast<int>(args.query_heads);
  const int dim = static_cast<int>(args.head_dim);
  const int value_dim = static_cast<int>(cache.values.dim);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int own_row = static_cast<int>(threadIdx.x) / kLanes;  // and kRowStep, 2 kRowStep .. on
  // Blocks with the most keys first.
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int row_tiles = (rows + kRows - 1) / kRows;
  const int row = (row_tiles - 1 - static_cast<int>(blockIdx.x) / heads) * kRows;
  const int end = first + min(row + kRows, rows);  // of the keys
  const int window = args.window > 0 ? static_cast<int>(args.window) : 1 << 30;
  const int oldest = max(0, first + row - window + 1);
  const int kv_head = head / (heads / static_cast<int>(args.kv_heads));
  const int own = static_cast<int>(cache.keys.dim);  // elements of a key that no other head has

  constexpr int kQuads = kDim / 4;
  bring<float4>(shared.queries, kQuads, rows - row, dim, [&](int r, int c) {
    return load_quad<float4>(args.q.data, (row + r) * args.q.stride + int64_t{head} * dim + c);
  });
  float out[kThreadRows][4 * kTiles] = {};
  float peak[kThreadRows];      // of the scaled scores so far
  float sum[kThreadRows] = {};  // of exponentials, this thread's keys
#pragma unroll
  for (float& x : peak) {
    x = -INFINITY;
  }

  for (int key = oldest / kKeys * kKeys; key < end; key += kKeys) {
    __syncthreads();  // the keys before have been read
    const auto load = [&](const HeadRows& of, int plane, int r, int c) {
      return load_quad<Quad>(of.data, (key + r) * of.stride + plane * of.pitch + c);
    };
    bring<Quad>(shared.keys, kQuads, end - key, dim, [&](int r, int c) {
      return c < own ? load(cache.keys, kv_head, r, c) : load(cache.shared, 0, r, c - own);
    });
    bring<Quad>(shared.values, kQuads, end - key, value_dim,
                [&](int r, int c) { return load(cache.values, kv_head, r, c); });
    __syncthreads();

    float scores[kThreadRows][kThreadKeys] = {};
#pragma unroll 4
    for (int c = 0; c < dim; c += 4) {
      float4 k[kThreadKeys];
#pragma unroll
      for (int j = 0; j < kThreadKeys; ++j) {
        k[j] = *reinterpret_cast<const float4*>(&shared.keys[lane + kLanes * j][c]);
      }
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        const float4 q =
            *reinterpret_cast<const float4*>(&shared.queries[own_row + kRowStep * i][c]);
#pragma unroll
        for (int j = 0; j < kThreadKeys; ++j) {
          scores[i][j] = dot_x4(q, k[j], scores[i][j]);
        }
      }
    }

#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      const int position = first + row + own_row + kRowStep * i;
      float highest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kThreadKeys; ++j) {
        const int column = key + lane + kLanes * j;
        const bool seen = (column <= position) & (column > position - window);
        if constexpr (kCapped) {
          scores[i][j] = tanhf(scores[i][j] * args.scale / args.soft_cap);
        }
        scores[i][j] = seen ? scores[i][j] * score_scale : -INFINITY;
        highest = fmaxf(highest, scores[i][j]);
      }
      const float next =
          fmaxf(peak[i], over_row_lanes(highest, [](float a, float b) { return fmaxf(a, b); }));
      // A row that has seen no key yet: its exponentials are to be 0, not NaN.
      const float shift = next == -INFINITY ? 0 : next;
      const float rescale = exp2f(peak[i] - shift);
      peak[i] = next;
      sum[i] *= rescale;
#pragma unroll
      for (float& x : out[i]) {
        x *= rescale;
      }
#pragma unroll
      for (int j = 0; j < kThreadKeys; ++j) {
        const float weight = exp2f(scores[i][j] - shift);
        sum[i] += weight;
        shared.weights[own_row + kRowStep * i][lane + kLanes * j] = weight;
      }
    }
    __syncwarp();

#pragma unroll 2
    for (int j = 0; j < kKeys; j += 4) {
      float4 weights[kThreadRows];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        weights[i] = *reinterpret_cast<const float4*>(&shared.weights[own_row + kRowStep * i][j]);
      }
#pragma unroll
      for (int l = 0; l < 4; ++l) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          const float4 v =
              *reinterpret_cast<const float4*>(&shared.values[j + l][64 * t + 4 * lane]);
#pragma unroll
          for (int i = 0; i < kThreadRows; ++i) {
            const float weight = l == 0   ? weights[i].x
                                 : l == 1 ? weights[i].y
                                 : l == 2 ? weights[i].z
                                          : weights[i].w;
            out[i][4 * t] = fmaf(weight, v.x, out[i][4 * t]);
            out[i][4 * t + 1] = fmaf(weight, v.y, out[i][4 * t + 1]);
            out[i][4 * t + 2] = fmaf(weight, v.z, out[i][4 * t + 2]);
            out[i][4 * t + 3] = fmaf(weight, v.w, out[i][4 * t + 3]);
          }
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kThreadRows; ++i) {
    const float all = over_row_lanes(sum[i], [](float a, float b) { return a + b; });
    const float factor = softmax_factor(args.sinks, head, all, peak[i]);
    const int r = row + own_row + kRowStep * i;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int column = 64 * t + 4 * lane;
      if (r < rows && column < value_dim) {
        const float* x = &out[i][4 * t];
        store_x4(args.out.data, args.out.dtype,
                 r * args.out.stride + int64_t{head} * value_dim + column,
                 {x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor});
      }
    }
  }
}

template <int kDim, class Quad>
Status start(const AttentionArgs& args, const KeyRows& cache, int rows, int first,
             cudaStream_t stream) {
  return launch_kernel(
      args.soft_cap > 0 ? attention_f32<kDim, Quad, true> : attention_f32<kDim, Quad, false>,
      {.blocks = ceil_div(rows, kRows) * static_cast<int>(args.query_heads),
       .threads = kThreads,
       .shared_bytes = static_cast<int>(sizeof(Shared<kDim>)),
       .stream = stream},
      args, cache, rows, first, (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E);
}

template <class Quad>
Status start_for(const AttentionArgs& args, const KeyRows& cache, int rows, int first,
                 cudaStream_t stream) {
  const int64_t dim = std::max(args.head_dim, cache.values.dim);
  const auto start_kernel = dim <= 64    ? start<64, Quad>
                            : dim <= 128 ? start<128, Quad>
                                         : start<kMostPrefillHeadDim, Quad>;
  return start_kernel(args, cache, rows, first, stream);
}

}  // namespace

std::string_view refuse_prefill_attention_f32(const AttentionArgs& args) {
  if (args.cache.dtype == DType::f16 || args.out.dtype == DType::f16) {
    return "cache and result must be f32 or bf16";
  }
  if (args.head_dim % 4 != 0 || args.head_dim > kMostPrefillHeadDim || args.q.stride % 4 != 0 ||
      args.out.stride % 4 != 0) {
    return "heads must be multiples of 4 up to 256, and rows too";
  }
  return {};
}

Status prefill_attention_f32(const AttentionArgs& args, const KeyRows& cache, int64_t rows,
                             int64_t first, Stream stream) {
  const auto launch = cache.dtype == DType::bf16 ? start_for<uint2> : start_for<float4>;
  return launch(args, cache, static_cast<int>(rows), static_cast<int>(first),
                static_cast<cudaStream_t>(stream.native));
}

}  // namespace weft::hopper
