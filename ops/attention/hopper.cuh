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
      raw[i] = static_cast<const uint4*>(row)[kParts * chunk + i];
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

/// The step's own row of keys and values, in shared memory as the cache will have it: it is on its
/// way to the cache, but not to be read from there in this step.
struct NewRow {
  int position;  ///< -1: another split's
  const char* key;
  const char* value;
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
  const int chunks = dim / 8;
  int lanes = 1;  // that share a row
  while (lanes < chunks) {
    lanes *= 2;
  }
  const int rows = 32 / lanes;  // that a warp takes at once
  const int chunk = team.lane % lanes;
  const bool active = chunk < chunks;
  const int64_t row_bytes = static_cast<int64_t>(dim) * (kF32 ? 4 : 2);

  // Queries stay in shared memory: registers are for the cache's rows and the sums. Heads beyond
  // `heads` repeat the last one and are not stored.
  const auto query = [&](int h) {
    return smem_address(queries + min(h, heads - 1) * dim + (active ? chunk : 0) * 8);
  };
  float maximum[kHeadsAtOnce];
  float total[kHeadsAtOnce] = {};
  float sum[kHeadsAtOnce][8] = {};
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
    maximum[h] = -__builtin_inff();
  }

  // One row at a time for each group of lanes, the next one or two on their way. Short code, on
  // purpose: all that a step executes should stay in the instruction cache.
  const int stride = Team::kWarps * rows;
  struct Row {
    CacheChunk<kF32> key, value;
  };
  const auto load = [&](int at) {
    Row row = {};
    if (at < last && active) {
      const bool is_own = at == own.position;
      row.key.load(is_own ? own.key : keys + at * row_bytes, chunk);
      row.value.load(is_own ? own.value : values + at * row_bytes, chunk);
    }
    return row;
  };
  const int mine = first + team.warp * rows + team.lane / lanes;
  constexpr int kAhead = kF32 ? 1 : 2;
  Row ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    ahead[i] = load(mine + i * stride);
  }
#pragma unroll 1
  for (int base = 0; first + team.warp * rows + base < last; base += stride) {
    const Row row = ahead[0];
    ahead[0] = ahead[kAhead - 1];
    ahead[kAhead - 1] = load(mine + base + kAhead * stride);
    float score[kHeadsAtOnce];
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const float4 low = load_shared(query(h));
      const float4 high = load_shared(query(h) + 16);
      score[h] =
          ((low.x * row.key[0] + low.y * row.key[1]) + (low.z * row.key[2] + low.w * row.key[3])) +
          ((high.x * row.key[4] + high.y * row.key[5]) +
           (high.z * row.key[6] + high.w * row.key[7]));
    }
#pragma unroll 1
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        score[h] += __shfl_xor_sync(~0u, score[h], distance);
      }
    }
    if (mine + base < last) {
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const float higher = fmaxf(maximum[h], score[h]);
        const float weight = __expf(score[h] - higher);
        const float keep = __expf(maximum[h] - higher);  // 0 the first time
        maximum[h] = higher;
        total[h] = total[h] * keep + weight;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          sum[h][i] = sum[h][i] * keep + weight * row.value[i];
        }
      }
    }
  }

  // Merge the groups of lanes of a warp, then leave the warp's part in shared memory.
  const int pitch = dim + 2;
#pragma unroll
  for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll 1
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
#pragma unroll 1
  for (int64_t at = first * row_bytes + team.thread * kLine; at < end;
       at += Team::kThreads * kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(rows + at));
  }
}

/// Partial results of attention in memory: sums [head][split][dim], then maximum and total
/// [head][split][2].
struct Partials {
  Tagged* sums;
  Tagged* tails;
  int splits;

  __device__ Partials(Tagged* memory, int heads, int splits_, int dim)
      : sums(memory),
        tails(memory + static_cast<int64_t>(heads) * splits_ * dim),
        splits(splits_) {}
};

/// Merges the first `active` splits of every head, which carry `tag`, into a row of heads * dim
/// elements (`dim` a multiple of 4).
template <class Late>
__device__ void attention_merge(const Team& team, const Partials& partials, uint32_t tag,
                                int active, int heads, int dim, Late& late, const SplitRow& row) {
  const int quads = heads * dim / 4;
  const int per_head = dim / 4;
  constexpr int kQuads = 2;   // of a thread, at once
  constexpr int kSplits = 2;  // on their way at once
#pragma unroll 1
  for (int begin = team.thread; begin < quads; begin += kQuads * Team::kThreads) {
    const Tagged* sums[kQuads];
    const Tagged* tails[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = min(begin + j * Team::kThreads, quads - 1);
      const int head = quad / per_head;
      const int first = head * partials.splits;
      sums[j] = partials.sums + static_cast<int64_t>(first) * dim + 4 * (quad - head * per_head);
      tails[j] = partials.tails + 2 * first;
    }
    float4 sum[kQuads] = {};
    float highest[kQuads];
    float all[kQuads] = {};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      highest[j] = -__builtin_inff();
    }
#pragma unroll 1
    for (int split = 0; split < active; split += kSplits) {
      // Of each (split, quad): maximum and total, then the four elements.
      constexpr int kParts = 3;
      float2 x[kSplits * kQuads * kParts] = {};
      const int there = min(kSplits, active - split);
      await_pairs(
          x, (1u << (there * kQuads * kParts)) - 1, tag,
          [&](int i) {
            const int j = i / kParts % kQuads;
            const int at = split + i / (kParts * kQuads);
            return i % kParts == 0 ? tails[j] + 2 * at
                                   : sums[j] + static_cast<int64_t>(at) * dim + i % kParts * 2 - 2;
          },
          late);
#pragma unroll
      for (int s = 0; s < kSplits; ++s) {
        if (s < there) {
#pragma unroll
          for (int j = 0; j < kQuads; ++j) {
            const float2* part = &x[(s * kQuads + j) * kParts];
            const float higher = fmaxf(highest[j], part[0].x);
            const float keep = __expf(highest[j] - higher);
            const float take = __expf(part[0].x - higher);
            highest[j] = higher;
            all[j] = all[j] * keep + part[0].y * take;
            sum[j].x = sum[j].x * keep + part[1].x * take;
            sum[j].y = sum[j].y * keep + part[1].y * take;
            sum[j].z = sum[j].z * keep + part[2].x * take;
            sum[j].w = sum[j].w * keep + part[2].y * take;
          }
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int quad = begin + j * Team::kThreads;
      if (quad < quads) {
        const float factor = 1.0f / all[j];
        row.store4(quad,
                   {sum[j].x * factor, sum[j].y * factor, sum[j].z * factor, sum[j].w * factor});
      }
    }
  }
}

}  // namespace weft::hopper
