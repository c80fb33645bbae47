// Attention over latent rows (ops/mla) on the resident kernel, of one sequence: a split of the keys
// for a few heads.
#pragma once

#include "arch/cdna/mma.hip.h"
#include "engine/cdna/decode/attention.hip.h"

namespace weft::cdna {

inline constexpr int kLatentRow = kLatentRank + kLatentTurned;
inline constexpr int kLatentQuads = kLatentRow / 4;

/// Where attention works in LDS.
struct LatentScratch {
  static constexpr int kKeys = 64;  ///< at a time

  /// Upper bf16 parts of the heads' queries, then the lower ones.
  alignas(16) uint16_t queries[2 * kLatentHeads][kLatentRow + 8];
  alignas(16) float scores[2][2][kLatentHeads][kKeys + 4];  ///< by turns; of halves of the rows
  alignas(16) uint16_t own[kLatentRow];                     ///< the step's row
};
static_assert(sizeof(LatentScratch) <= sizeof(shared.row));

/// Four elements, pairs of neighbours, each turned by an angle of its own.
WEFT_GPU f32x4 turn_pairs(f32x4 x, const float (*angles)[2]) {
  return {x[0] * angles[0][0] - x[1] * angles[0][1], x[1] * angles[0][0] + x[0] * angles[0][1],
          x[2] * angles[1][0] - x[3] * angles[1][1], x[3] * angles[1][0] + x[2] * angles[1][1]};
}

/// By the team, 64 keys at a time. Scores: a wave has 16 of the keys, of which it takes half of the
/// elements, against the heads' queries, whose two parts are columns of B. Sums: a wave has 64 of
/// the elements, of all 64 keys, against the probabilities in the same two parts. Rows come from
/// memory as the operands want them, those that follow while these are worked on; the first are
/// asked for before the queries are there.
class LatentAttention {
 public:
  __device__ __attribute__((always_inline))
  LatentAttention(const Worker& worker, CodeRef code, const SplitKeys& split)
      : worker_(worker),
        code_(code),
        first_(split.first),
        last_(split.last),
        own_(split.last == worker.position(0) + 1 ? split.last - 1 : -1) {}

  __device__ __attribute__((always_inline)) void run() {
    // The own row is not read from the cache, where it may not have arrived.
    const Buffer rows((const void*)worker_.at<char>(code_.attention.keys),
                      static_cast<uint32_t>((own_ >= 0 ? own_ : last_) * kRowBytes));
    load_keys(rows, first_);
    load_values(rows, first_);
    barrier();  // LDS is free
    if (own_ >= 0) {
      make_own_row();  // is there before the queries are
    }
    make_queries();
    barrier();
    int turn = 0;
#pragma unroll 1
    for (int base = first_; base < last_; base += LatentScratch::kKeys) {
      if (own_ >= base && own_ < base + LatentScratch::kKeys) {
        take_own_row(base);
      }
      store_scores(turn);
      load_keys(rows, base + LatentScratch::kKeys);
      barrier();
      add_values(base, turn);
      load_values(rows, base + LatentScratch::kKeys);
      turn ^= 1;
    }
    store();
  }

 private:
  static constexpr int kRowBytes = 2 * kLatentRow;
  static constexpr int kHalves = 2;                         ///< of a row
  static constexpr int kSteps = kLatentRow / kHalves / 32;  ///< of 32 elements
  static constexpr int kStrips = kTeamWaves / kHalves;
  static_assert(kStrips * 16 == LatentScratch::kKeys && kLatentRank == kTeamWaves * 64);

  WEFT_GPU LatentScratch& scratch() { return *reinterpret_cast<LatentScratch*>(shared.row); }
  WEFT_GPU int along() { return lane_index() % 16; }
  WEFT_GPU int quarter() { return lane_index() / 16; }
  WEFT_GPU int head() { return lane_index() % kLatentHeads; }  ///< of a column of B
  WEFT_GPU int part() { return lane_index() / kLatentHeads % 2; }
  WEFT_GPU int strip() { return wave_index() % kStrips; }
  WEFT_GPU int half() { return wave_index() / kStrips; }

  // Of 16 keys, operand A.
  WEFT_GPU int key_element(int step) { return (half() * kSteps + step) * 32 + quarter() * 8; }
  WEFT_GPU int key_of(int base) { return base + strip() * 16 + along(); }
  // Of keys that a lane has of 32, elements of A's row.
  WEFT_GPU int value_element() { return wave_index() * 64 + along() * 4; }
  WEFT_GPU int value_key(int base, int step, int j) { return base + step * 32 + quarter() * 8 + j; }

  __device__ __attribute__((always_inline)) void load_keys(const Buffer& rows, int base) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      key_[step] = rows.load(key_of(base) * kRowBytes + key_element(step) * 2);
    }
  }
  __device__ __attribute__((always_inline)) void load_values(const Buffer& rows, int base) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      value_[i / 8][i % 8] =
          rows.load_pair(value_key(base, i / 8, i % 8) * kRowBytes + value_element() * 2);
    }
  }
  /// The step's own row, which is one of these keys.
  __device__ __attribute__((always_inline)) void take_own_row(int base) {
    if (key_of(base) == own_) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        key_[step] = *reinterpret_cast<const u32x4*>(&scratch().own[key_element(step)]);
      }
    }
    const auto own = *reinterpret_cast<const u32x2*>(&scratch().own[value_element()]);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      u32x2& value = value_[i / 8][i % 8];
      value = value_key(base, i / 8, i % 8) == own_ ? own : value;
    }
  }

  /// The queries, scaled and turned, as operands; zeros of heads that there are none of.
  __device__ __attribute__((always_inline)) void make_queries() {
    constexpr int kEach = ceil_div(kLatentHeads * kLatentQuads, kTeamThreads);
    const auto& code = code_.attention;
    const int heads = code.last - code.first;
    const auto place = [](int i) { return thread_index() + i * kTeamThreads; };
    const auto quad = [&](int i) { return place(i) % kLatentQuads; };
    const auto turns = [&](int i) { return quad(i) >= kLatentRank / 4; };
    const auto from = [&](int i) {
      const int of = code.first + __builtin_elementwise_min(place(i) / kLatentQuads, heads - 1);
      return turns(i) ? worker_.at<uint64_t>(code.v) + (of + 1) * (code.projected / 2) -
                            (kLatentQuads - quad(i)) * 2
                      : worker_.at<uint64_t>(code.q) + of * (kLatentRank / 2) + quad(i) * 2;
    };
    Tagged words[2 * kEach];
    worker_.await(code_.operation, -1, [&] {
      bool there = true;
#pragma unroll
      for (int i = 0; i < 2 * kEach; ++i) {
        words[i] = load_tagged(from(i / 2) + i % 2);
      }
#pragma unroll
      for (int i = 0; i < 2 * kEach; ++i) {
        there =
            there && words[i].tag() == worker_.tag(turns(i / 2) ? code.v_version : code.q_version);
      }
      return there;
    });
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int of = place(i) / kLatentQuads;
      if (of < kLatentHeads) {
        f32x4 x{words[2 * i].first(), words[2 * i].second(), words[2 * i + 1].first(),
                words[2 * i + 1].second()};
        if (turns(i)) {
          x = turn_pairs(x, &shared.angles[0][code.rope][2 * (quad(i) - kLatentRank / 4)]);
        }
        const TwoParts parts(of < heads ? x * code.scale : f32x4{0, 0, 0, 0});
        *reinterpret_cast<u32x2*>(&scratch().queries[of][4 * quad(i)]) = parts.upper;
        *reinterpret_cast<u32x2*>(&scratch().queries[kLatentHeads + of][4 * quad(i)]) = parts.lower;
      }
    }
  }

  /// The step's own row, as the cache has it, to LDS and, by the first heads, the cache.
  __device__ __attribute__((always_inline)) void make_own_row() {
    const auto& code = code_.attention;
    const int quad = __builtin_elementwise_min(thread_index(), kLatentQuads - 1);
    const bool has = thread_index() < kLatentQuads;
    Tagged words[2];
    await_tagged(worker_, code_.operation, worker_.tag(code.k_version), words,
                 [&](int i) { return worker_.at<uint64_t>(code.k) + 2 * quad + i; });
    f32x4 x{words[0].first(), words[0].second(), words[1].first(), words[1].second()};
    const float squares = team_sum(thread_index() < kLatentRank / 4 ? squares_of(x) : 0, 0);
    if (!has) {
      return;
    }
    if (quad < kLatentRank / 4) {
      x *= norm_factor(squares, kLatentRank, code.epsilon) *
           load_weights(worker_, code.key_norm, quad);
    } else {
      x = turn_pairs(x, &shared.angles[0][code.rope][2 * (quad - kLatentRank / 4)]);
    }
    const u32x2 rounded{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
    *reinterpret_cast<u32x2*>(&scratch().own[4 * quad]) = rounded;
    if (code.first == 0) {
      const auto to =
          worker_.at<uint64_t>(code.keys) + static_cast<int64_t>(own_) * (kRowBytes / 8) + quad;
      store_shared_word<uint64_t>(to, __builtin_bit_cast(uint64_t, rounded));
    }
  }

  /// Of this wave's keys and half of the elements, all heads'.
  __device__ __attribute__((always_inline)) void store_scores(int turn) const {
    f32x4 sums[2] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const auto queries =
          *reinterpret_cast<const u32x4*>(&scratch().queries[along()][key_element(step)]);
      sums[step % 2] = mma_bf16(key_[step], queries, sums[step % 2]);
    }
    const f32x4 score = both_parts(sums[0] + sums[1]);
    if (part() == 0) {
      *reinterpret_cast<f32x4*>(
          &scratch().scores[turn][half()][head()][strip() * 16 + quarter() * 4]) = score;
    }
  }
  /// What the two columns of a head have together.
  WEFT_GPU f32x4 both_parts(f32x4 x) {
    constexpr int kOther = kRowRotateRight<kLatentHeads>;
    return x + f32x4{from_lane<kOther>(x[0]), from_lane<kOther>(x[1]), from_lane<kOther>(x[2]),
                     from_lane<kOther>(x[3])};
  }

  __device__ __attribute__((always_inline)) void add_values(int base, int turn) {
    f32x4 p[2][2];
    float highest = maximum_;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int key = value_key(0, step, 4 * i);
        p[step][i] = *reinterpret_cast<const f32x4*>(&scratch().scores[turn][0][head()][key]) +
                     *reinterpret_cast<const f32x4*>(&scratch().scores[turn][1][head()][key]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          p[step][i][j] = base + key + j < last_ ? p[step][i][j] : -kInfinity;
          highest = __builtin_fmaxf(highest, p[step][i][j]);
        }
      }
    }
    highest = column_reduce<Max>(highest);
    const float keep = exp_fast(maximum_ - highest);
    maximum_ = highest;
    total_ *= keep;
#pragma unroll
    for (f32x4& sum : sums_) {
      sum *= keep;
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          p[step][i][j] = exp_fast(p[step][i][j] - maximum_);
          total_ += p[step][i][j];
        }
      }
      const TwoParts low(p[step][0]);
      const TwoParts high(p[step][1]);
      const u32x4 weights = part() == 0
                                ? __builtin_shufflevector(low.upper, high.upper, 0, 1, 2, 3)
                                : __builtin_shufflevector(low.lower, high.lower, 0, 1, 2, 3);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        u32x4 column;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          column[j] =
              __builtin_amdgcn_perm(value_[step][2 * j + 1][e / 2], value_[step][2 * j][e / 2],
                                    e % 2 == 0 ? 0x05040100u : 0x07060302u);
        }
        sums_[e] = mma_bf16(column, weights, sums_[e]);
      }
    }
  }

  /// The tagged maximum is rounded, and the sums are of that.
  __device__ __attribute__((always_inline)) void store() const {
    const Worker worker = worker_.made_here();
    const auto& code = made_here(&code_)->attention;
    const float total = column_reduce<Sum>(total_);
    const float highest = __builtin_bit_cast(float, upper24(maximum_) << 8);
    const float factor = exp_fast(maximum_ - highest);
    f32x4 sums[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sums[e] = both_parts(sums_[e] * factor);
    }
    if (head() >= code.last - code.first) {
      return;
    }
    const Partials partials(worker.at<uint64_t>(code.partials), 0,
                            worker.arguments->shape.query_heads, code.splits.count, kLatentRank);
    const uint32_t tag = worker.tag(code.version);
    const int64_t slot = static_cast<int64_t>(code.first + head()) * code.splits.count + code.split;
    const TaggedPlace to =
        partials.sums + (slot * kLatentRank + wave_index() * 64 + quarter() * 16 + part() * 8) / 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // of the row's elements each part has half
      f32x4 x;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[e] = part() == 0 ? sums[e][i] : sums[e][2 + i];
      }
      store_tagged(to + 2 * i, x[0], x[1], tag);
      store_tagged(to + 2 * i + 1, x[2], x[3], tag);
    }
    if (wave_index() == 0 && lane_index() < kLatentHeads) {
      store_tagged(partials.tails + slot, highest, factor * total, tag);
    }
  }

  const Worker& worker_;
  CodeRef code_;
  const int first_, last_;
  const int own_;  ///< the step's own position; -1: another split's
  u32x4 key_[kSteps];
  u32x2 value_[2][8];
  f32x4 sums_[4] = {};
  float maximum_ = -kInfinity;
  float total_ = 0;
};

WEFT_GPU void attend_latents(const Worker& worker, CodeRef code) {
  const auto& attention = code.attention;
  const SplitKeys split(attention.splits.count, attention.splits.window, worker.position(0),
                        attention.split, resident::KeysOf::latents);
  if (attention.split < split.active) {
    LatentAttention(worker, code, split).run();
  }
}

}  // namespace weft::cdna
