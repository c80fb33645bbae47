// attention of one row on a resident CTA: the keys of one KV head in one range, for all query heads
// of its group (GQA). Groups of lanes take rows of the cache; each keeps a softmax of its own
// (online, Milakov and Gimelshein 2018), merged over lanes, then warps, in a fixed order.
#pragma once

#include "ops/attention/hopper_layout.h"
#include "ops/linear/hopper.cuh"

namespace weft::hopper {

/// Eight elements of a cache row, as they lie there.
template <bool kF32>
struct CacheChunk {
  uint4 raw[kF32 ? 2 : 1];
  __device__ void load(const void* row, int chunk) {
    constexpr int kParts = kF32 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      raw[i] = __ldcg(static_cast<const uint4*>(row) + kParts * chunk + i);
    }
  }
  /// From eight f32 that the cache's format holds exactly.
  __device__ void take(const float* x) {
    if constexpr (kF32) {
      raw[0] = reinterpret_cast<const uint4*>(x)[0];
      raw[1] = reinterpret_cast<const uint4*>(x)[1];
    } else {
      raw[0] = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                pack_bf16(x[6], x[7])};
    }
  }
  __device__ float operator[](int i) const {
    const uint4& part = raw[kF32 ? i / 4 : 0];
    const auto word = [&](int w) {
      return w == 0 ? part.x : w == 1 ? part.y : w == 2 ? part.z : part.w;
    };
    if constexpr (kF32) {
      return __uint_as_float(word(i % 4));
    } else {
      return i % 2 == 0 ? bf16_low(word(i / 2)) : bf16_high(word(i / 2));
    }
  }
};

/// The step's own row of keys and values, in shared memory as f32 (already rounded to the cache's
/// format); it is on its way to the cache, but not to be read from there in this step.
struct NewRow {
  int position;  ///< -1: another split's
  const float* key;
  const float* value;
};

/// Attends with `heads` (at most kHeadsAtOnce) queries, [heads][dim] f32 in shared memory, scaled
/// already, to keys [first, last) of one KV head. keys, values: that head's [capacity, dim]. `dim`
/// is a multiple of 8, at most 256. store(h, d, sum, maximum, total) is called for each head and
/// element with the unnormalised sum, the maximum of q.k and the sum of exponentials. Ends with a
/// sync.
template <bool kF32, class Store>
__device__ void attention_range(const Team& team, const float* queries, const char* keys,
                                const char* values, const NewRow& own, int dim, int heads,
                                int first, int last, float* scratch, Store store) {
  constexpr int kUnroll = kF32 ? 2 : 4;  // rows of the cache in flight for each group of lanes
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
      query[h][i] = h < heads && active ? queries[h * dim + chunk * 8 + i] : 0.0f;
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
    const int row = base + team.lane / lanes;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = row + u * stride;
      if (at < last && active) {
        if (at != own.position) {
          key[u].load(keys + at * row_bytes, chunk);
          value[u].load(values + at * row_bytes, chunk);
        } else {
          key[u].take(own.key + chunk * 8);
          value[u].take(own.value + chunk * 8);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      float score[kHeadsAtOnce] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float k = key[u][i];
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          score[h] += query[h][i] * k;
        }
      }
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          score[h] += __shfl_xor_sync(~0u, score[h], distance);
        }
      }
      if (row + u * stride < last) {
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          const float higher = fmaxf(maximum[h], score[h]);
          const float weight = __expf(score[h] - higher);
          const float keep = __expf(maximum[h] - higher);  // 0 the first time
          maximum[h] = higher;
          total[h] = total[h] * keep + weight;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            sum[h][i] = sum[h][i] * keep + weight * value[u][i];
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
#pragma unroll
    for (int w = 0; w < Team::kWarps; ++w) {
      highest = fmaxf(highest, part(w)[dim]);
    }
    float element = 0;
    float all = 0;
#pragma unroll
    for (int w = 0; w < Team::kWarps; ++w) {
      const float m = part(w)[dim];
      const float factor = m == -__builtin_inff() ? 0.0f : __expf(m - highest);
      element += part(w)[d] * factor;
      all += part(w)[dim + 1] * factor;
    }
    store(h, d, element, highest, all);
  }
  team.sync();  // the scratch is free again
}

/// Brings rows [first, last) of a head's cache from memory into L2.
__device__ inline void prefetch_rows(const Team& team, const char* rows, int64_t row_bytes,
                                     int first, int last) {
  constexpr int64_t kLine = 128;
  const int64_t end = last * row_bytes;
  for (int64_t at = first * row_bytes + team.thread * kLine; at < end;
       at += Team::kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(rows + at));
  }
}

/// Partial results of attention in memory: sums [head][split][dim], then maximum and total
/// [head][split][2].
struct Partials {
  float* sums;
  float* tails;
  int splits;

  __device__ Partials(float* memory, int heads, int splits_, int dim)
      : sums(memory),
        tails(memory + static_cast<int64_t>(heads) * splits_ * dim),
        splits(splits_) {}
};

/// Merges the first `active` splits of every head into a row of heads * dim elements (`dim` a
/// multiple of 4). `factors`: shared, heads * active floats.
__device__ inline void attention_merge(const Team& team, const Partials& partials, int active,
                                       int heads, int dim, float* factors, const SplitRow& row) {
  const int quads = heads * dim / 4;
  const auto source = [&](int quad, int split) {
    const int head = 4 * quad / dim;
    return reinterpret_cast<const float4*>(
        partials.sums + (static_cast<int64_t>(head) * partials.splits + split) * dim +
        4 * quad % dim);
  };
  // The first parts are asked for before it is known how much each counts.
  constexpr int kQuads = 2;
  constexpr int kSplits = 4;
  float4 early[kQuads][kSplits];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int quad = team.thread + j * Team::kThreads;
#pragma unroll
    for (int s = 0; s < kSplits; ++s) {
      early[j][s] = quad < quads && s < active ? __ldcg(source(quad, s)) : float4{};
    }
  }
  constexpr int kHeads = 4;  // whose tails a warp has on their way at once
  for (int first = team.warp * kHeads; first < heads; first += Team::kWarps * kHeads) {
    float2 tail[kHeads];
    const auto load = [&](int h, int split) {
      return first + h < heads && split < active
                 ? __ldcg(reinterpret_cast<const float2*>(
                       partials.tails +
                       (static_cast<int64_t>(first + h) * partials.splits + split) * 2))
                 : float2{-__builtin_inff(), 0.0f};
    };
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      tail[h] = load(h, team.lane);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float highest = tail[h].x;
      for (int split = team.lane + 32; split < active; split += 32) {
        highest = fmaxf(highest, load(h, split).x);
      }
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, distance));
      }
      float all = tail[h].y * __expf(tail[h].x - highest);
      for (int split = team.lane + 32; split < active; split += 32) {
        const float2 t = load(h, split);
        all += t.y * __expf(t.x - highest);
      }
      all = warp_sum(all);
      if (first + h < heads) {
        for (int split = team.lane; split < active; split += 32) {
          const float m = split == team.lane ? tail[h].x : load(h, split).x;
          factors[(first + h) * active + split] = __expf(m - highest) / all;
        }
      }
    }
  }
  team.sync();
  const auto add = [](float4& to, float4 x, float factor) {
    to.x += x.x * factor;
    to.y += x.y * factor;
    to.z += x.z * factor;
    to.w += x.w * factor;
  };
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int quad = team.thread + j * Team::kThreads;
    if (quad < quads) {
      const float* factor = factors + 4 * quad / dim * active;
      float4 sum = {};
#pragma unroll
      for (int s = 0; s < kSplits; ++s) {
        if (s < active) {
          add(sum, early[j][s], factor[s]);
        }
      }
#pragma unroll 4
      for (int s = kSplits; s < active; ++s) {
        add(sum, __ldcg(source(quad, s)), factor[s]);
      }
      row.store4(quad, sum);
    }
  }
  for (int quad = team.thread + kQuads * Team::kThreads; quad < quads; quad += Team::kThreads) {
    const float* factor = factors + 4 * quad / dim * active;
    float4 sum = {};
#pragma unroll 4
    for (int s = 0; s < active; ++s) {
      add(sum, __ldcg(source(quad, s)), factor[s]);
    }
    row.store4(quad, sum);
  }
}

}  // namespace weft::hopper
