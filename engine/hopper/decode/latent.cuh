// Attention over latent rows (ops/mla) on the resident kernel: a split of a sequence's keys for a
// few heads, and of one sequence the rows of products of which each head has one.
#pragma once

#include "engine/hopper/decode/attention.cuh"
#include "engine/hopper/decode/worker.cuh"
#include "ops/attention/hopper.cuh"
#include "ops/rmsnorm/hopper.cuh"

namespace weft::hopper {

/// Four elements, pairs of neighbours, each turned by an angle of its own.
__device__ inline float4 turn_pairs(float4 x, float2 first, float2 second) {
  return {x.x * first.x - x.y * first.y, x.y * first.x + x.x * first.y,
          x.z * second.x - x.w * second.y, x.w * second.x + x.z * second.y};
}

/// By the team, 64 keys at a time. Scores by mma m16n8k16: a warp has 16 of the keys, of half of
/// the elements, so that it reads half of the queries only, which all warps have from shared
/// memory; A holds these, head g in row g its upper bf16 part and in row g + 8 the lower one. Sums:
/// a warp has 64 of the elements, of all 64 keys; A holds the probabilities in the same two parts.
/// Operands lie in registers as WarpAttention says. The first rows are asked for before the queries
/// are there. Keys beyond the last are the last one again, so that nothing need be asked of each
/// load; they weigh nothing. Short code, on purpose: a step executes each part of it once a layer.
template <class W>
class LatentAttention {
 public:
  __device__ LatentAttention(const W& worker, const Code& code)
      : worker_(worker),
        code_(code),
        memory_(*reinterpret_cast<LatentScratch*>(worker.scratch())),
        rows_(at<char>(worker, code.attention.keys) +
              static_cast<int64_t>(sequence()) * worker.launch().shape.capacity * kRowBytes),
        g_(W::team().lane / 4),
        t_(W::team().lane % 4),
        position_(worker.position_of(sequence())) {
    int active;
    split_keys<KeysOf::latents>(attention().splits, position_, attention().split, first_, last_,
                                active);
    idle_ = attention().split >= active;
    own_ = last_ == position_ + 1 ? position_ : -1;
  }

  __device__ void run() {
    if (idle_) {
      return;
    }
    float sums[8][4] = {};
    float maximum = -__builtin_inff();
    float total = 0;
    int buffer = 0;
#pragma unroll 1
    for (int base = first_; base < last_; base += kKeys) {
      load_keys(base);
      load_values(base);
      if (base == first_) {
        if (own_ >= 0) {
          make_own_row();  // is there before the queries are
        }
        make_queries();
        W::team().sync();
        worker_.stamp(1);
      }
      take_own_row(base);
      put_scores(base, memory_.scores[buffer][W::team().warp / 4]);
      W::team().sync();
      const auto& scores = memory_.scores[buffer];
      buffer ^= 1;
      float p[kSteps][4];
      float highest = maximum;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = 16 * s + 8 * i + 2 * t_;
          const auto first = *reinterpret_cast<const float2*>(&scores[0][g_][key]);
          const auto second = *reinterpret_cast<const float2*>(&scores[1][g_][key]);
          p[s][2 * i] = first.x + second.x;
          p[s][2 * i + 1] = first.y + second.y;
          highest = fmaxf(highest, fmaxf(p[s][2 * i], p[s][2 * i + 1]));
        }
      }
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
      const float keep = __expf(maximum - highest);
      maximum = highest;
      total *= keep;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[j][i] *= keep;
        }
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[s][i] = __expf(p[s][i] - maximum);
          total += p[s][i];
        }
        const uint4 weights = parts({p[s][0], p[s][1], p[s][2], p[s][3]});
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          mma_bf16(sums[j], weights, across(value_[s][0], value_[s][1], j),
                   across(value_[s][2], value_[s][3], j));
        }
      }
    }
    store(sums, maximum, total);
  }

 private:
  static constexpr int kKeys = LatentScratch::kKeys;
  static_assert(kKeys == 8 * Team::kWarps && kLatentRank == 64 * Team::kWarps);
  static constexpr int kRow = LatentScratch::kRow;
  static constexpr int kRowBytes = 2 * kRow;
  static constexpr int kRankQuads = kLatentRank / 4;
  static constexpr int kKeyChunks = kRow / 2 / 32;  ///< of a lane: of half a row
  static_assert(kRow % 64 == 0);
  static constexpr int kSteps = kKeys / 16;  ///< mma of 16 values each
  using Chunk = CacheChunk<false>;

  __device__ const AttentionCode& attention() const { return code_.attention; }
  __device__ int heads() const { return attention().last - attention().first; }
  __device__ int sequence() const { return W::kBatch == 1 ? 0 : attention().sequence; }
  /// The sequence's row of all heads, of so many elements each; from this code's first head on.
  __device__ const Tagged* row_of(Place rows, int elements) const {
    const int of_heads = sequence() * worker_.launch().shape.query_heads + attention().first;
    return row_at(worker_, rows, of_heads, elements);
  }

  /// Four numbers as the operand A: upper parts in row g, lower ones in row g + 8.
  __device__ static uint4 parts(float4 x) {
    return {bf16_part(x.x, x.y, 0), bf16_part(x.x, x.y, 1), bf16_part(x.z, x.w, 0),
            bf16_part(x.z, x.w, 1)};
  }
  /// Element j of two rows' chunks side by side.
  __device__ static uint32_t across(const Chunk& first, const Chunk& second, int j) {
    return __byte_perm(first.word(j / 2), second.word(j / 2), j % 2 == 0 ? 0x5410 : 0x7632);
  }
  /// Of a key's row from element 8 of_row on.
  __device__ const char* row_from(int key, int of_row) const {
    return rows_ + static_cast<int64_t>(key) * kRowBytes + of_row * 16;
  }
  /// A lane's keys for scores, and its first chunk of their rows.
  __device__ int own_key(int base, int n) const {
    return base + W::team().warp % 4 * 16 + 8 * n + g_;
  }
  __device__ int key_chunk() const { return W::team().warp / 4 * (kRow / 16) + t_; }
  __device__ void load_keys(int base) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const char* from = row_from(min(own_key(base, n), last_ - 1), key_chunk());
#pragma unroll
      for (int i = 0; i < kKeyChunks; ++i) {
        key_[n][i].load_fresh(from + 64 * i);
      }
    }
  }
  /// A lane's keys among 16 values: 2t, 2t + 1, 2t + 8, 2t + 9; from 2t on.
  __device__ static constexpr int value_key(int s, int r) { return 16 * s + r % 2 + r / 2 * 8; }
  __device__ int value_chunk() const { return 8 * W::team().warp + g_; }
  __device__ void load_values(int base) {
    const int first = base + 2 * t_;
    const char* from = row_from(first, value_chunk());
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        value_[s][r].load_fresh(
            from + static_cast<int64_t>(min(value_key(s, r), last_ - 1 - first)) * kRowBytes);
      }
    }
  }
  /// The step's own row, where it is one of these keys, from shared memory: what was read of it
  /// others were writing. It is the last one.
  __device__ void take_own_row(int base) {
    if (own_ < base || own_ >= base + kKeys) {
      return;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (own_key(base, n) >= own_) {
#pragma unroll
        for (int i = 0; i < kKeyChunks; ++i) {
          key_[n][i].load(memory_.own, key_chunk() + 4 * i);
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        if (base + 2 * t_ + value_key(s, r) >= own_) {
          value_[s][r].load(memory_.own, value_chunk());
        }
      }
    }
  }

  /// The queries, scaled and turned, as operands.
  __device__ void make_queries() {
    constexpr int kQuads = kRow / 4;
    constexpr int kEach = (kLatentHeads * kQuads + Team::kThreads - 1) / Team::kThreads;
    const AttentionCode& code = attention();
    const Tagged* latents = row_of(code.q, kLatentRank);
    const Tagged* turned = row_of(code.v, code.projected) + code.projected / 2 - kLatentTurned / 2;
    const auto place = [&](int i) { return W::team().thread + i * Team::kThreads; };
    TaggedQuad asked[kEach] = {};
    auto late = worker_.late(code_);
    bool there;
    do {  // all that is not there yet at once
      there = true;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int head = place(i) / kQuads;
        const int quad = place(i) % kQuads;
        const bool turns = quad >= kRankQuads;
        const uint32_t tag = worker_.tag(turns ? code.v_version : code.q_version);
        if (head < heads() && !asked[i].has(tag)) {
          asked[i] = load_tagged_quad(turns ? turned + head * (code.projected / 2) +
                                                  2 * (quad - kRankQuads)
                                            : latents + head * (kLatentRank / 2) + 2 * quad);
          there = there && asked[i].has(tag);
        }
      }
    } while (!there && !late());
    const float2* angles = worker_.angles(code.rope, sequence());
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int head = place(i) / kQuads;
      const int quad = place(i) % kQuads;
      if (head < kLatentHeads) {
        float4 x = head < heads() ? asked[i].values() : float4{};
        if (quad >= kRankQuads) {
          const float2* angle = angles + 2 * (quad - kRankQuads);
          x = turn_pairs(x, angle[0], angle[1]);
        }
        *reinterpret_cast<uint4*>(&memory_.queries[head][quad]) =
            parts({x.x * code.scale, x.y * code.scale, x.z * code.scale, x.w * code.scale});
      }
    }
  }

  /// The step's own row, as the cache has it, to shared memory and, by the first heads, the cache.
  __device__ void make_own_row() {
    const AttentionCode& code = attention();
    const int quad = W::team().thread;
    static_assert(kRow / 4 <= Team::kThreads);
    const bool has = quad < kRow / 4;
    float4 x = {};
    float4 w = {};
    if (has) {
      if (quad < kRankQuads) {  // from memory, while the row is on its way
        w = load_weight4(at<const __nv_bfloat16>(worker_, code.key_norm), quad, 0);
      }
      auto late = worker_.late(code_);
      const Tagged* from = row_at(worker_, code.k, sequence(), kRow) + 2 * quad;
      x = await_quad(load_tagged_quad(from), from, worker_.tag(code.k_version), late);
    }
    const float squares = team_sum(W::team(), quad < kRankQuads ? squares_of(x) : 0.0f, 0);
    const float factor = norm_factor(squares, kLatentRank, code.epsilon);
    if (!has) {
      return;
    }
    if (quad < kRankQuads) {
      x = {x.x * factor * w.x, x.y * factor * w.y, x.z * factor * w.z, x.w * factor * w.w};
    } else {
      const float2* angle = worker_.angles(code.rope, sequence()) + 2 * (quad - kRankQuads);
      x = turn_pairs(x, angle[0], angle[1]);
    }
    const uint2 rounded{pack_bf16(x.x, x.y), pack_bf16(x.z, x.w)};
    reinterpret_cast<uint2*>(memory_.own)[quad] = rounded;
    if (code.first == 0) {
      reinterpret_cast<uint2*>(rows_ + static_cast<int64_t>(position_) * kRowBytes)[quad] = rounded;
    }
  }

  /// Of head g with this warp's keys 2t, 2t + 1, 2t + 8 and 2t + 9, of its half of the elements.
  __device__ void put_scores(int base,
                             float (&scores)[kLatentHeads][LatentScratch::kScorePitch]) const {
    float score[2][2][4] = {};
    const uint32_t queries =
        smem_address(&memory_.queries[g_][W::team().warp / 4 * (kRow / 8) + 2 * t_]);
    constexpr int kAhead = 2;  // on their way from shared memory
    uint4 query[kAhead + 1][2];
    const auto load = [&](int i) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        query[i % (kAhead + 1)][part] = load_shared_bits(queries + 128 * i + 16 * part);
      }
    };
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      load(i);
    }
#pragma unroll
    for (int i = 0; i < kKeyChunks; ++i) {
      if (i + kAhead < kKeyChunks) {
        load(i + kAhead);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          mma_bf16(score[n][part], query[i % (kAhead + 1)][part], key_[n][i].word(2 * part),
                   key_[n][i].word(2 * part + 1));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const auto sum = [&](int i) {
        return (score[n][0][i] + score[n][1][i]) + (score[n][0][i + 2] + score[n][1][i + 2]);
      };
      const int key = W::team().warp % 4 * 16 + 8 * n + 2 * t_;
      *reinterpret_cast<float2*>(&scores[g_][key]) = {
          base + key < last_ ? sum(0) : -__builtin_inff(),
          base + key + 1 < last_ ? sum(1) : -__builtin_inff()};
    }
  }

  __device__ void store(const float (&sums)[8][4], float maximum, float total) const {
    const AttentionCode& code = attention();
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (g_ >= heads()) {
      return;
    }
    const Partials partials(at<Tagged>(worker_, code.partials), sequence(),
                            worker_.launch().shape.query_heads, code.splits.count, kLatentRank);
    const uint32_t tag = worker_.tag(code.version);
    const float highest = round_to_tagged(maximum);
    const float factor = __expf(maximum - highest);
    const int64_t slot = static_cast<int64_t>(code.first + g_) * code.splits.count + code.split;
    Tagged* to = partials.sums + (slot * kLatentRank + 64 * W::team().warp + 16 * t_) / 2;
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto sum = [&](int of) { return factor * (sums[j + of][i] + sums[j + of][i + 2]); };
        store_tagged_quad(to + 4 * i + j / 2, {sum(0), sum(1), sum(2), sum(3)}, tag);
      }
    }
    if (W::team().warp == 0 && t_ == 0) {
      store_tagged(partials.tails + slot, highest, factor * total, tag);
    }
  }

  const W& worker_;
  const Code& code_;
  LatentScratch& memory_;
  char* rows_;  // the sequence's, of the cache
  const int g_, t_;
  const int position_;
  int first_, last_;
  int own_;  // the step's own position; -1: another split's
  bool idle_;
  Chunk key_[2][kKeyChunks];
  Chunk value_[kSteps][4];
};

/// The heads that a product of heads has columns of.
struct ProductHeads {
  int first;
  int count;
  __device__ explicit ProductHeads(const ProductCode& product) {
    const int columns = product.segment[0].head_columns;
    first = small_quotient(product.first, columns);
    count =
        small_quotient(product.first + static_cast<int>(product.segment[0].columns) - 1, columns) -
        first + 1;
  }
};

/// Of one sequence: this thread's part of the rows of a product of heads, each from a slice on:
/// heads' parts of a row.
template <class W>
__device__ __forceinline__ void take_heads(const W& worker, const Code& code, char* row) {
  const ProductCode& product = code.product;
  const int quads = slices_of(product.k) * (kSliceK / 4);  // of a head
  const int count = ProductHeads(product).count * quads;
  const uint32_t tag = worker.tag(product.source);
  const Tagged* from = at<const Tagged>(worker, product.row);
  auto late = worker.late(code);
#pragma unroll 1
  for (int i = worker.team().thread; i < count; i += Team::kThreads) {
    const int head = small_quotient(i, quads);
    const int quad = i - head * quads;
    float4 x = {};
    if (4 * quad < product.k) {
      const Tagged* own = from + head * (product.head_pitch / 2) + 2 * quad;
      x = await_quad(load_tagged_quad(own), own, tag, late);
    }
    store_row_quad<1>(row, 0, i, x);
  }
}

/// Likewise, of attention's splits, merged: two elements a thread at a time.
template <class W>
__device__ __forceinline__ void merge_heads(const W& worker, const Code& code, char* row) {
  constexpr int kAtOnce = 12;  // splits on their way
  static_assert(kLatentRank % kSliceK == 0);
  constexpr int kPairs = kLatentRank / 2;
  static_assert(kPairs % Team::kThreads == 0);  // all threads have as many
  const ProductCode& product = code.product;
  const ProductHeads heads(product);
  int first;
  int last;
  int active;
  split_keys<KeysOf::latents>(product.splits, worker.position_of(0), 0, first, last, active);
  const Partials partials(at<Tagged>(worker, product.row), 0, worker.launch().shape.query_heads,
                          product.splits.count, kLatentRank);
  const uint32_t tag = worker.tag(product.source);
  auto late = worker.late(code);
#pragma unroll 1
  for (int i = worker.team().thread; i < heads.count * kPairs; i += Team::kThreads) {
    const int slot = (heads.first + i / kPairs) * product.splits.count;
    const Tagged* tails = partials.tails + slot;
    const Tagged* sums = partials.sums + static_cast<int64_t>(slot) * kPairs + i % kPairs;
    float highest = -__builtin_inff();
    float all = 0;
    float2 sum = {};
#pragma unroll 1
    for (int base = 0; base < active; base += kAtOnce) {
      Tagged tail[kAtOnce] = {};
      Tagged pair[kAtOnce] = {};
      bool there = false;
      while (!there) {  // few words to look at again and again
        tail[0] = load_tagged(tails + base);
        there = tail[0].tag() == tag || late();
      }
      do {
        there = true;
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          if (base + s < active) {
            pair[s] = load_tagged(sums + (base + s) * kPairs);
            tail[s] = load_tagged(tails + base + s);
          }
        }
#pragma unroll
        for (int s = 0; s < kAtOnce; ++s) {
          there = there && (base + s >= active || (pair[s].tag() == tag && tail[s].tag() == tag));
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
          sum = {sum.x * keep + pair[s].first() * take, sum.y * keep + pair[s].second() * take};
        }
      }
    }
    __syncwarp();
    const float factor = __fdividef(1.0f, all);
    const float2 own = {sum.x * factor, sum.y * factor};
    const float4 x = {own.x, own.y, __shfl_down_sync(~0u, own.x, 1),
                      __shfl_down_sync(~0u, own.y, 1)};
    if (i % 2 == 0) {
      store_row_quad<1>(row, 0, i / 2, x);
    }
  }
}

}  // namespace weft::hopper
