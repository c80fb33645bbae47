// attention of one row on a resident CTA: the keys of one KV head in one range, for all query heads
// of its group (GQA). Groups of lanes take rows of the cache; each keeps a softmax of its own
// (online, Milakov and Gimelshein 2018), merged over lanes, then warps, in a fixed order.
#pragma once

#include "arch/hopper/resident.cuh"
#include "ops/attention/hopper_layout.h"

namespace weft::hopper {

/// Eight elements of a cache row.
template <bool kF32>
struct CacheChunk {
  float x[8];
  __device__ void load(const void* row, int chunk) {
    if constexpr (kF32) {
      const float4 a = __ldcg(static_cast<const float4*>(row) + 2 * chunk);
      const float4 b = __ldcg(static_cast<const float4*>(row) + 2 * chunk + 1);
      x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
      x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
      const uint4 v = __ldcg(static_cast<const uint4*>(row) + chunk);
      x[0] = bf16_low(v.x), x[1] = bf16_high(v.x), x[2] = bf16_low(v.y), x[3] = bf16_high(v.y);
      x[4] = bf16_low(v.z), x[5] = bf16_high(v.z), x[6] = bf16_low(v.w), x[7] = bf16_high(v.w);
    }
  }
};

/// Attends with query heads [head, head + heads) (at most kHeadsAtOnce; one KV head's) to keys
/// [first, last). q: [query heads, dim] f32. keys, values: that KV head's [capacity, dim]. `dim` is
/// a multiple of 8, at most 256. store(h, d, sum, maximum, total) is called for each head and
/// element with the unnormalised sum, the maximum of scale * q.k and the sum of exponentials.
template <bool kF32, class Store>
__device__ void attention_range(const Team& team, const float* q, const void* keys,
                                const void* values, int dim, int head, int heads, int first,
                                int last, float scale, float* scratch, Store store) {
  constexpr int kUnroll = 2;  // rows of the cache in flight for each group of lanes
  const int chunks = dim / 8;
  int lanes = 1;  // that share a row
  while (lanes < chunks) {
    lanes *= 2;
  }
  const int rows = 32 / lanes;  // that a warp takes at once
  const int chunk = team.lane % lanes;
  const bool active = chunk < chunks;
  const int64_t row_bytes = static_cast<int64_t>(dim) * (kF32 ? 4 : 2);

  float query[kHeadsAtOnce][8];
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      query[h][i] = h < heads && active
                        ? __ldcg(q + static_cast<int64_t>(head + h) * dim + chunk * 8 + i) * scale
                        : 0.0f;
    }
  }
  float maximum[kHeadsAtOnce];
  float total[kHeadsAtOnce] = {};
  float sum[kHeadsAtOnce][8] = {};
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    maximum[h] = -__builtin_inff();
  }

  const int stride = Team::kWarps * rows;
  for (int base = first + team.warp * rows; base < last; base += kUnroll * stride) {
    CacheChunk<kF32> key[kUnroll] = {};
    CacheChunk<kF32> value[kUnroll] = {};
    bool valid[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int row = base + u * stride + team.lane / lanes;
      valid[u] = row < last;
      if (valid[u] && active) {
        key[u].load(static_cast<const char*>(keys) + row * row_bytes, chunk);
        value[u].load(static_cast<const char*>(values) + row * row_bytes, chunk);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        float score = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          score += query[h][i] * key[u].x[i];
        }
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
          score += __shfl_xor_sync(~0u, score, distance);
        }
        if (valid[u]) {
          const float higher = fmaxf(maximum[h], score);
          const float weight = __expf(score - higher);
          const float keep = __expf(maximum[h] - higher);  // 0 the first time
          maximum[h] = higher;
          total[h] = total[h] * keep + weight;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            sum[h][i] = sum[h][i] * keep + weight * value[u].x[i];
          }
        }
      }
    }
  }

  // Merge the groups of lanes of a warp, then leave the warp's part in shared memory.
  const int pitch = dim + 2;
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    for (int distance = lanes; distance < 32; distance *= 2) {
      const float other = __shfl_xor_sync(~0u, maximum[h], distance);
      const float higher = fmaxf(maximum[h], other);
      // Nothing seen on either side: keep zeros, not exp(-inf + inf).
      const float keep = higher == -__builtin_inff() ? 0.0f : __expf(maximum[h] - higher);
      const float take = higher == -__builtin_inff() ? 0.0f : __expf(other - higher);
      total[h] = total[h] * keep + __shfl_xor_sync(~0u, total[h], distance) * take;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum[h][i] = sum[h][i] * keep + __shfl_xor_sync(~0u, sum[h][i], distance) * take;
      }
      maximum[h] = higher;
    }
    float* part = scratch + (team.warp * kHeadsAtOnce + h) * pitch;
    if (team.lane < lanes && active) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        part[chunk * 8 + i] = sum[h][i];
      }
    }
    if (team.lane == 0) {
      part[dim] = maximum[h];
      part[dim + 1] = total[h];
    }
  }
  team.sync();
  for (int i = team.thread; i < heads * dim; i += Team::kThreads) {
    const int h = i / dim;
    const int d = i % dim;
    const auto part = [&](int warp) { return scratch + (warp * kHeadsAtOnce + h) * pitch; };
    float highest = -__builtin_inff();
    for (int w = 0; w < Team::kWarps; ++w) {
      highest = fmaxf(highest, part(w)[dim]);
    }
    float element = 0;
    float all = 0;
    for (int w = 0; w < Team::kWarps; ++w) {
      const float m = part(w)[dim];
      const float factor = m == -__builtin_inff() ? 0.0f : __expf(m - highest);
      element += part(w)[d] * factor;
      all += part(w)[dim + 1] * factor;
    }
    store(head + h, d, element, highest, all);
  }
  team.sync();  // the scratch is free again
}

/// Merges the partial results of query heads [first, last): see AttentionArgs::partials.
__device__ inline void attention_merge(const Team& team, const float* partials, int splits, int dim,
                                       int first, int last, float* out) {
  for (int i = team.thread; i < (last - first) * dim; i += Team::kThreads) {
    const int head = first + i / dim;
    const int d = i % dim;
    const float* part = partials + static_cast<int64_t>(head) * splits * (dim + 2);
    float highest = -__builtin_inff();
    for (int s = 0; s < splits; ++s) {
      highest = fmaxf(highest, __ldcg(part + s * (dim + 2) + dim));
    }
    float element = 0;
    float all = 0;
    for (int s = 0; s < splits; ++s) {
      const float* from = part + s * (dim + 2);
      const float m = __ldcg(from + dim);
      const float factor = m == -__builtin_inff() ? 0.0f : __expf(m - highest);
      element += __ldcg(from + d) * factor;
      all += __ldcg(from + dim + 1) * factor;
    }
    __stcg(out + static_cast<int64_t>(head) * dim + d, element / all);
  }
}

}  // namespace weft::hopper
