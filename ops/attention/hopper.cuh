// attention of one row on a resident CTA: the keys of one KV head in one range, for all query heads
// of its group (GQA). Each warp (with an f32 cache: each group of lanes) takes keys of its own and
// keeps a softmax of its own (online, Milakov and Gimelshein 2018); they are merged in a fixed
// order.
#pragma once

#include "ops/attention/hopper_layout.h"
#include "ops/hopper_activation.cuh"
#include "ops/linear/hopper.cuh"

namespace weft::hopper {

/// Two f32 as bf16: part 0 the nearest, part 1 the nearest of what is left.
__device__ inline uint32_t bf16_part(float first, float second, int part) {
  const uint32_t upper = pack_bf16(first, second);
  return part == 0 ? upper : pack_bf16(first - bf16_low(upper), second - bf16_high(upper));
}

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
  /// Of a row that other SMs have written: from L2.
  __device__ void load_fresh(const char* from) {
    constexpr int kParts = kF32 ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      raw[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
    }
  }
  /// Four bytes.
  __device__ uint32_t word(int i) const {
    const uint4& part = raw[i / 4];
    return i % 4 == 0 ? part.x : i % 4 == 1 ? part.y : i % 4 == 2 ? part.z : part.w;
  }
  __device__ float operator[](int i) const {
    if constexpr (kF32) {
      return __uint_as_float(word(i));
    } else {
      return i % 2 == 0 ? bf16_low(word(i / 2)) : bf16_high(word(i / 2));
    }
  }
  /// Elements 2i, 2i + 1 as bf16: part 0, with an f32 cache also what it leaves, part 1.
  __device__ uint32_t pair(int i, int part) const {
    if constexpr (kF32) {
      return bf16_part((*this)[2 * i], (*this)[2 * i + 1], part);
    } else {
      return word(i);
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

/// Merges the warps' parts: scratch is [warp][pitch_heads][dim + 2], a head's unnormalised sums,
/// the maximum of q.k and the sum of exponentials. Calls store(h, d, first, second, maximum, total)
/// for each head and each pair of elements d, d + 1 with the same of all warps; the maximum is one
/// that a tagged word holds exactly. Begins and ends with a sync.
template <class Store>
__device__ void merge_parts(const Team& team, const float* scratch, int pitch_heads, int heads,
                            int dim, Store store) {
  team.sync();
  for (int i = team.thread; 2 * i < heads * dim; i += Team::kThreads) {
    const int h = small_quotient(2 * i, dim);
    const int d = 2 * i - h * dim;
    const auto part = [&](int warp) { return scratch + (warp * pitch_heads + h) * (dim + 2); };
    float highest = -__builtin_inff();
#pragma unroll
    for (int w = 0; w < Team::kWarps; ++w) {
      highest = fmaxf(highest, part(w)[dim]);
    }
    highest = round_to_tagged(highest);
    float2 sum{};
    float all = 0;
#pragma unroll
    for (int w = 0; w < Team::kWarps; ++w) {
      const float m = part(w)[dim];
      const float factor = m == -__builtin_inff() ? 0.0f : __expf(m - highest);
      const float2 x = *reinterpret_cast<const float2*>(part(w) + d);
      sum.x += x.x * factor;
      sum.y += x.y * factor;
      all += part(w)[dim + 1] * factor;
    }
    store(h, d, sum.x, sum.y, highest, all);
  }
  team.sync();  // the scratch is free again
}

/// Attends with `heads` (at most kHeadsAtOnce) queries, [heads][dim] f32 in shared memory, scaled
/// already, to keys [first, last) of one KV head. keys, values: that head's [capacity, dim]. `dim`
/// is a multiple of 8, at most 256; soft_cap: of scores, 0: none. store(h, d, first, second,
/// maximum, total) is called as merge_parts() says.
template <bool kF32, class Store>
__device__ void attention_range(const Team& team, const float* queries, const char* keys,
                                const char* values, const NewRow& own, int dim, int heads,
                                int first, int last, float soft_cap, float* scratch, Store store) {
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
        score[h] = soft_cap > 0 ? cap_fast(score[h], soft_cap) : score[h];
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
  merge_parts(team, scratch, kHeadsAtOnce, heads, dim, store);
}

/// Attention by mma m16n8k16. A warp takes 16 keys at a time, the team 128.
///
/// Scores: A holds the queries, head g in row g its upper bf16 part and in row g + 8 the lower one;
/// B the keys, as they lie in the cache: of 32 elements lane (g, t) has 8t .. 8t + 7 of key g, and
/// the queries' k is ordered alike. Sums: A holds the probabilities in the same two parts, straight
/// from the scores' accumulators; B the values: in the j-th mma column g is element 8g + j, so that
/// a lane's rows of the cache are again whole chunks, and pairs of keys are put together by byte
/// permutes. What an f32 cache holds is multiplied as two bf16 as well. kDim: the head's elements,
/// a multiple of 64; kF32: of the cache.
template <int kDim, bool kF32>
class WarpAttention {
 public:
  static constexpr int kKeys = 16;  ///< of a warp at once
  static constexpr int kTeamKeys = Team::kWarps * kKeys;
  /// Whether registers are there for the values before the keys have been used.
  static constexpr bool kValuesEarly = kDim <= 64;

  __device__ WarpAttention(const Team& team, const char* keys, const char* values, int first,
                           int last)
      : lane_g_(team.lane / 4),
        lane_t_(team.lane % 4),
        keys_(keys + lane_g_ * kRowBytes + lane_t_ * kChunkBytes),
        values_(values + 2 * lane_t_ * kRowBytes + lane_g_ * kChunkBytes),
        last_(last),
        at_(first + team.warp * kKeys) {}

  /// Asks for the first keys and values; those at `own`, which others may be writing, are left out.
  __device__ void ask(int own) {
    load_keys(own);
    if constexpr (kValuesEarly) {
      load_values(own);
    }
  }

  /// All of the warp's keys, for `heads` (1 .. 8) queries [heads][dim] in shared memory, scaled
  /// already; then leaves the warp's part at `part` [heads][dim + 2].
  __device__ void run(const float* queries, int heads, const NewRow& own, float* part) {
    float sums[kDim / 64][8][4] = {};
    float maximum = -__builtin_inff();
    float total = 0;
#pragma unroll 1
    for (; at_ < last_; at_ += kTeamKeys) {
      const int own_key = own.position - at_;  // of these 16, if it is one of them
      const bool has_own = own_key >= 0 && own_key < kKeys;
      if (has_own) {
        own_key_row(own_key, own);
        if constexpr (kValuesEarly) {
          own_value_row(own_key, own);
        }
      }
      float score[2][4] = {};
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        // From shared memory each time: registers are for the cache's rows and the sums.
        const int d = 32 * i + 8 * lane_t_;
        const bool there = lane_g_ < heads;
        const uint32_t q = smem_address(queries + lane_g_ * kDim + d);
        const float4 low = there ? load_shared(q) : float4{};
        const float4 high = there ? load_shared(q + 16) : float4{};
        const uint4 first = parts(low.x, low.y, low.z, low.w);
        const uint4 second = parts(high.x, high.y, high.z, high.w);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const CacheChunk<kF32>& key = key_[n][i];
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            mma_bf16(score[n], first, key.pair(0, part), key.pair(1, part));
            mma_bf16(score[n], second, key.pair(2, part), key.pair(3, part));
          }
        }
      }
      const int now = at_;
      if constexpr (kValuesEarly) {
        at_ += kTeamKeys;
        load_keys(own.position);
        at_ = now;
      } else {
        load_values(own.position);
      }
      // Scores of keys 2t, 2t + 1, 8 + 2t, 8 + 2t + 1 for head g.
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool there = now + i / 2 * 8 + 2 * lane_t_ + i % 2 < last_;
        p[i] = there ? score[i / 2][i % 2] + score[i / 2][i % 2 + 2] : -__builtin_inff();
      }
      float highest = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[2], p[3]));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
      highest = fmaxf(highest, maximum);  // some key is there: at_ < last
      const float keep = __expf(maximum - highest);
      maximum = highest;
      total *= keep;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = __expf(p[i] - highest);
        total += p[i];
      }
      const uint4 weights = parts(p[0], p[1], p[2], p[3]);
      if (!kValuesEarly && has_own) {
        own_value_row(own_key, own);
      }
#pragma unroll
      for (int s = 0; s < kDim / 64; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sums[s][j][i] *= keep;
          }
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            mma_bf16(sums[s][j], weights, across(value_[s][0], value_[s][1], j, part),
                     across(value_[s][2], value_[s][3], j, part));
          }
        }
      }
      at_ += kTeamKeys;
      if constexpr (kValuesEarly) {
        load_values(own.position);
      } else {
        load_keys(own.position);
      }
      at_ = now;
    }
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (lane_g_ < heads) {
      float* to = part + lane_g_ * (kDim + 2);
#pragma unroll
      for (int s = 0; s < kDim / 64; ++s) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int d = 64 * s + 16 * lane_t_ + j;
          to[d] = sums[s][j][0] + sums[s][j][2];
          to[d + 8] = sums[s][j][1] + sums[s][j][3];
        }
      }
      if (lane_t_ == 0) {
        to[kDim] = maximum;
        to[kDim + 1] = total;
      }
    }
  }

 private:
  /// Four values as the operand A of an mma: upper parts in row g, lower ones in row g + 8.
  __device__ static uint4 parts(float x, float y, float z, float w) {
    return {bf16_part(x, y, 0), bf16_part(x, y, 1), bf16_part(z, w, 0), bf16_part(z, w, 1)};
  }
  static constexpr int kParts = kF32 ? 2 : 1;  ///< bf16 of an element
  static constexpr int kChunkBytes = kF32 ? 32 : 16;
  static constexpr int kRowBytes = kDim / 8 * kChunkBytes;

  /// Element j of two rows' chunks side by side.
  __device__ static uint32_t across(const CacheChunk<kF32>& first, const CacheChunk<kF32>& second,
                                    int j, int part) {
    if constexpr (kF32) {
      return bf16_part(first[j], second[j], part);
    } else {
      return __byte_perm(first.pair(j / 2, 0), second.pair(j / 2, 0), j % 2 == 0 ? 0x5410 : 0x7632);
    }
  }
  /// A chunk of a key's row of the cache, zeros where there is none or others may be writing.
  __device__ CacheChunk<kF32> chunk(const char* from, int key, int own) const {
    CacheChunk<kF32> result = {};
    if (key < last_ && key != own) {
      result.load_fresh(from);
    }
    return result;
  }
  __device__ void load_keys(int own) {
    const char* from = keys_ + static_cast<int64_t>(at_) * kRowBytes;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        key_[n][i] =
            chunk(from + 8 * n * kRowBytes + 4 * i * kChunkBytes, at_ + 8 * n + lane_g_, own);
      }
    }
  }
  /// A lane's keys among the values: 2t, 2t + 1, 2t + 8, 2t + 9.
  __device__ int value_key(int r) const { return 2 * lane_t_ + r % 2 + r / 2 * 8; }
  __device__ void load_values(int own) {
    const char* from = values_ + static_cast<int64_t>(at_) * kRowBytes;
#pragma unroll
    for (int s = 0; s < kDim / 64; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        value_[s][r] = chunk(from + (r % 2 + r / 2 * 8) * kRowBytes + 8 * s * kChunkBytes,
                             at_ + value_key(r), own);
      }
    }
  }
  /// The step's own row, key `own_key` of these 16, from shared memory.
  __device__ void own_key_row(int own_key, const NewRow& own) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        if (8 * n + lane_g_ == own_key) {
          key_[n][i].load(own.key, 4 * i + lane_t_);
        }
      }
    }
  }
  __device__ void own_value_row(int own_key, const NewRow& own) {
#pragma unroll
    for (int s = 0; s < kDim / 64; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (value_key(r) == own_key) {
          value_[s][r].load(own.value, 8 * s + lane_g_);
        }
      }
    }
  }

  const int lane_g_, lane_t_;
  const char* keys_;
  const char* values_;
  const int last_;
  int at_;  // first of the warp's 16 keys
  CacheChunk<kF32> key_[2][kDim / 32];
  CacheChunk<kF32> value_[kDim / 64][4];
};

/// Partial results of attention in memory, of each sequence: sums [head][split][dim], then maximum
/// and total [head][split], both tagged.
struct Partials {
  Tagged* sums;
  Tagged* tails;
  int splits;
  int dim;

  __device__ Partials(Tagged* memory, int sequence, int heads, int splits_, int dim_)
      : sums(memory + static_cast<int64_t>(sequence) * heads * splits_ * (dim_ / 2 + 1)),
        tails(sums + static_cast<int64_t>(heads) * splits_ * (dim_ / 2)),
        splits(splits_),
        dim(dim_) {}
};

/// Elements element .. element + 7 (a multiple of 8; -1: none) of the row of heads * dim that the
/// first `active` splits of each head, which carry `tag`, make together. A head's dim is a multiple
/// of 8. kOneFirst: for many readers: all is looked at when the first split is there, until
/// then its tail alone, which is few words to look at again and again. kSinks: `sinks` are those of
/// the heads, or null.
template <bool kOneFirst, bool kSinks = false, class Late>
__device__ void merge_splits(const Partials& partials, uint32_t tag, int active, int element,
                             Late& late, float4 (&out)[2], const __nv_bfloat16* sinks = nullptr) {
  constexpr int kAtOnce = 6;  // splits on their way
  const int at = max(element, 0);
  const int head = small_quotient(at, partials.dim);
  const int first = head * partials.splits;
  const Tagged* tails = partials.tails + first;
  const Tagged* sums =
      partials.sums + (static_cast<int64_t>(first) * partials.dim + (at - head * partials.dim)) / 2;
  float highest = -__builtin_inff();
  float all = 0;
  out[0] = out[1] = {};
#pragma unroll 1
  for (int base = 0; base < active && element >= 0; base += kAtOnce) {
    Tagged tail[kAtOnce] = {};
    TaggedQuad quad[kAtOnce][2] = {};
    bool there = !kOneFirst;
    while (!there) {
      tail[0] = load_tagged(tails + base);
      there = tail[0].tag() == tag || late();
    }
    // What of them is not there yet is asked for once more with all others.
    do {
      there = true;
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        if (base + s < active) {
          const Tagged* from = sums + (base + s) * (partials.dim / 2);
          quad[s][0] = load_tagged_quad(from);
          quad[s][1] = load_tagged_quad(from + 2);
          tail[s] = load_tagged(tails + base + s);
        }
      }
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s) {
        there = there && (base + s >= active ||
                          (quad[s][0].has(tag) && quad[s][1].has(tag) && tail[s].tag() == tag));
      }
    } while (!there && !late());
#pragma unroll
    for (int s = 0; s < kAtOnce; ++s) {
      if (base + s < active) {
        const float higher = fmaxf(highest, tail[s].first());
        const float keep = __expf(highest - higher);
        const float take = __expf(tail[s].first() - higher);
        highest = higher;
        all = all * keep + tail[s].second() * take;
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const float4 x = quad[s][q].values();
          out[q].x = out[q].x * keep + x.x * take;
          out[q].y = out[q].y * keep + x.y * take;
          out[q].z = out[q].z * keep + x.z * take;
          out[q].w = out[q].w * keep + x.w * take;
        }
      }
    }
  }
  float keep = 1;
  if (kSinks && sinks != nullptr && element >= 0) {
    const float sink = __bfloat162float(sinks[head]);
    const float higher = fmaxf(highest, sink);
    keep = __expf(highest - higher);
    all = all * keep + __expf(sink - higher);
  }
  const float factor = element >= 0 ? __fdividef(keep, all) : 0.0f;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    out[q] = {out[q].x * factor, out[q].y * factor, out[q].z * factor, out[q].w * factor};
  }
}

}  // namespace weft::hopper
