// Attention for many rows: blocked flash attention with queries in the vector lanes.
//
// A lane is one (row, query head) pair of a KV head, so that the heads of a group share every key
// and value, softmax needs no sum across lanes, and keys are read where they lie: a score tile is
// keys x lanes, each key element broadcast against the transposed queries. Probabilities come out
// in the layout in which the second product wants them. Both products are one loop,
//     sum[t][lane] += operand[t][u] * lanes[u][lane]     over units u,
// where a unit is an f32, or a pair of bf16 that VDPBF16PS multiplies at once.
//
// Each lane's arithmetic depends on its own row alone: key blocks are aligned to position 0, a key
// that a lane does not see weighs exactly 0, and adding 0 changes nothing.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/divide.h"
#include "ops/attention/op.h"

#if defined(WEFT_OPS_ATTENTION_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ATTENTION_CHUNK_INL_H_
#undef WEFT_OPS_ATTENTION_CHUNK_INL_H_
#else
#define WEFT_OPS_ATTENTION_CHUNK_INL_H_
#endif

#include "arch/cpu/dot_units-inl.h"
#include "ops/attention/write-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

// The register tile: kTile x kVectors accumulators, plus kVectors lanes and one operand, fit in 32
// registers (AVX-512) or 16 (AVX2).
#if HWY_TARGET == HWY_AVX3
inline constexpr int kVectors = 4;
inline constexpr int kTile = 6;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kVectors = 2;
inline constexpr int kTile = 6;
#else
inline constexpr int kVectors = 4;
inline constexpr int kTile = 2;
#endif
inline constexpr int64_t kBlockLanes = kVectors * kFloatLanes;

/// Lanes that go through the keys together; they bound the scratch and share each packed block.
inline constexpr int64_t kPassLanes = 256;
static_assert(kPassLanes % kBlockLanes == 0, "a pass is whole lane blocks");

/// Keys [kAttentionBlock, head_dim] and values [kAttentionBlock, value_dim] of a block of
/// positions.
template <class K>
struct ChunkKeys {
  const K* keys;
  const K* values;
};

/// One 32-bit unit from memory of any type.
HWY_INLINE FloatVec broadcast_unit(const std::byte* p) {
  float unit;
  std::memcpy(&unit, p, sizeof(unit));
  return hn::Set(FloatTag(), unit);
}

/// The shared loop. `lanes`: [units][kBlockLanes]; operand[t] + u * step: unit u of operand row t.
template <class Units>
HWY_INLINE void multiply(const float* HWY_RESTRICT lanes, const std::byte* const (&operand)[kTile],
                         int64_t step, int64_t units, FloatVec (&sum)[kTile][kVectors]) {
  const FloatTag d;
  for (int64_t u = 0; u < units; ++u) {
    FloatVec a[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      a[v] = hn::LoadU(d, lanes + u * kBlockLanes + v * kFloatLanes);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const FloatVec b = broadcast_unit(operand[t] + u * step);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sum[t][v] = Units::multiply_add(a[v], b, sum[t][v]);
      }
    }
  }
}

/// out[j][i] = in[i][j] of 32-bit units of any type.
HWY_INLINE void transpose_4x4(const float* const (&in)[4], float* const (&out)[4]) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      std::memcpy(out[j] + i, in[i] + j, sizeof(float));
    }
  }
#else
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d64;
  const auto a = hn::LoadU(d, in[0]);
  const auto b = hn::LoadU(d, in[1]);
  const auto c = hn::LoadU(d, in[2]);
  const auto e = hn::LoadU(d, in[3]);
  const auto ab0 = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
  const auto ab2 = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
  const auto ce0 = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
  const auto ce2 = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab0, ce0)), d, out[0]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab0, ce0)), d, out[1]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab2, ce2)), d, out[2]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab2, ce2)), d, out[3]);
#endif
}

template <class Units, class Q, class K>
class ChunkAttention {
 public:
  using Element = typename Units::Weight;
  using Key = K;

  ChunkAttention(const AttentionArgs& args, std::byte* scratch)
      : ChunkAttention(args, args.head_dim, kPassLanes, scratch) {}
  /// Of values of another size, results [rows, query_heads = 1, value_dim]; a pass is of up to
  /// `lanes`, whole lane blocks.
  ChunkAttention(const AttentionArgs& args, int64_t value_dim, int64_t lanes, std::byte* scratch)
      : args_(args), value_dim_(value_dim), pass_lanes_(lanes) {
    auto* base = reinterpret_cast<float*>(scratch);
    const auto take = [&](int64_t floats) {
      const int64_t at = floats_;
      floats_ += round_up(floats, 16);
      return base == nullptr ? nullptr : base + at;
    };
    query_ = take(lanes * units_);
    sum_ = take(lanes * padded_dim_);
    maximum_ = take(lanes);
    total_ = take(lanes);
    limit_ = reinterpret_cast<int32_t*>(take(lanes));
    scores_ = take(round_up(kAttentionBlock, 2 * kTile) * kBlockLanes);
    probabilities_ = take(kAttentionBlock * kBlockLanes);
    keys_ = reinterpret_cast<std::byte*>(take(kAttentionBlock * args.head_dim));
    values_ = take(kAttentionBlock * padded_dim_);
    rows_ = take(4 * row_);
  }

  static size_t scratch_bytes(const AttentionArgs& args) {
    return ChunkAttention(args, nullptr).bytes();
  }
  size_t bytes() const { return static_cast<size_t>(floats_) * sizeof(float); }

  void run(Range rows, int64_t kv_head) {
    run(rows, kv_head, [&](int64_t block) {
      const int64_t place = args_.cache.place(rows.begin, kv_head, block, args_.head_dim);
      return ChunkKeys<K>{static_cast<const K*>(args_.cache.keys) + place,
                          static_cast<const K*>(args_.cache.values) + place};
    });
  }
  /// Over the blocks of keys that source(position of the first) gives, asked for in rising order in
  /// every pass.
  template <class Source>
  void run(Range rows, int64_t kv_head, Source&& source) {
    const int64_t lanes = rows.size() * group_;
    for (int64_t begin = 0; begin < lanes; begin += pass_lanes_) {
      pass(rows, kv_head, {begin, std::min(begin + pass_lanes_, lanes)}, source);
    }
  }

 private:
  /// Row and query head of a lane.
  struct Lane {
    int64_t row;
    int64_t head;
  };
  Lane lane(Range rows, int64_t kv_head, int64_t index) const {
    return {rows.begin + index / group_, kv_head * group_ + index % group_};
  }

  template <class Source>
  void pass(Range rows, int64_t kv_head, Range lanes, Source& source) {
    const int64_t padded = round_up(lanes.size(), kBlockLanes);
    load_queries(rows, kv_head, lanes, padded);
    std::fill(sum_, sum_ + padded * padded_dim_, 0.0f);
    std::fill(maximum_, maximum_ + padded, -__builtin_inff());
    std::fill(total_, total_ + padded, 0.0f);

    const Range first = attention_keys(limit_[0], args_.window);
    const int64_t end = limit_[lanes.size() - 1] + 1;
    for (int64_t block = first.begin / kAttentionBlock * kAttentionBlock; block < end;
         block += kAttentionBlock) {
      const int64_t count = std::min(kAttentionBlock, end - block);
      const ChunkKeys<K> of = source(block);
      const std::byte* key_rows = load_keys(of.keys, count);
      const bool finite = load_values(of.values, count);
      for (int64_t i = 0; i < padded; i += kBlockLanes) {
        attend(i, std::min(i + kBlockLanes, lanes.size()) - 1, block, key_rows, finite);
      }
    }
    write(rows, kv_head, lanes);
  }

  /// One lane block over one key block. `last`: the last lane in use.
  void attend(int64_t first, int64_t last, int64_t block, const std::byte* key_rows, bool finite) {
    const Range oldest = attention_keys(limit_[first], args_.window);
    const Range newest = attention_keys(limit_[last], args_.window);
    const int64_t count = std::min(kAttentionBlock, newest.end - block);
    if (count <= 0 || block + kAttentionBlock <= oldest.begin) {
      return;  // no lane sees any of it
    }
    const bool masked = block + count > oldest.end || block < newest.begin;
    FloatVec best[kVectors];
    const auto score = [&](auto masks, auto caps) {
      score_as<masks.value, caps.value>(first, block, count, key_rows, best);
    };
    const auto score_capped = [&](auto masks) {
      args_.soft_cap > 0 ? score(masks, std::true_type()) : score(masks, std::false_type());
    };
    masked ? score_capped(std::true_type()) : score_capped(std::false_type());
    FloatVec decay[kVectors];
    soften(first, count, best, decay);
    if (masked && !finite) {
      accumulate_seen(first, block, count, decay);
    } else {
      accumulate(first, count, decay);
    }
  }

  /// Whether the lanes of vector v see key `position`.
  HWY_INLINE auto sees(int64_t first, int v, int64_t position) const {
    const hn::RebindToSigned<FloatTag> di;
    const auto limit = hn::LoadU(di, limit_ + first + v * kFloatLanes);
    const auto key = hn::Set(di, static_cast<int32_t>(position));
    const int64_t window = args_.window > 0 ? args_.window : INT32_MAX;
    const auto age = hn::Sub(limit, key);
    const auto old = hn::Set(di, static_cast<int32_t>(std::min<int64_t>(window, INT32_MAX)));
    return hn::RebindMask(FloatTag(), hn::AndNot(hn::Lt(age, hn::Zero(di)), hn::Lt(age, old)));
  }

  /// scores_[key][lane] = q.k, and each lane's largest so far.
  template <bool kMasked, bool kCapped>
  void score_as(int64_t first, int64_t block, int64_t count, const std::byte* key_rows,
                FloatVec (&best)[kVectors]) {
    const FloatTag d;
    const auto none = hn::Set(d, -__builtin_inff());
    for (int v = 0; v < kVectors; ++v) {
      best[v] = none;
    }
    for (int64_t key = 0; key < count; key += kTile) {
      const std::byte* operand[kTile];
      for (int t = 0; t < kTile; ++t) {  // beyond the last key: the last key once more
        operand[t] = key_rows + std::min(key + t, count - 1) * units_ * 4;
      }
      FloatVec sum[kTile][kVectors];
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sum[t][v] = hn::Zero(d);
        }
      }
      multiply<Units>(query_ + first * units_, operand, 4, units_, sum);
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          FloatVec s = sum[t][v];
          if constexpr (kCapped) {
            s = cap_score(args_, s);
          }
          if constexpr (kMasked) {
            s = hn::IfThenElse(sees(first, v, block + std::min(key + t, count - 1)), s, none);
          }
          best[v] = hn::Max(best[v], s);
          hn::StoreU(s, d, scores_ + (key + t) * kBlockLanes + v * kFloatLanes);
        }
      }
    }
    if (count % Units::kElements != 0) {  // the missing half of the last pair
      std::fill(scores_ + count * kBlockLanes, scores_ + (count + 1) * kBlockLanes,
                -__builtin_inff());
    }
  }

  /// Scores to probabilities against the new maximum; decay: what older sums are multiplied with.
  void soften(int64_t first, int64_t count, const FloatVec (&best)[kVectors],
              FloatVec (&decay)[kVectors]) {
    const FloatTag d;
    const auto factor = hn::Set(d, args_.scale * 1.44269504f);
    const auto none = hn::Set(d, -__builtin_inff());
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = first + v * kFloatLanes;
      const auto before = hn::LoadU(d, maximum_ + at);
      const auto now = hn::Max(before, best[v]);
      // A lane that has seen nothing: any finite origin gives exp(-infinity) = 0.
      const auto origin = hn::IfThenElse(hn::Eq(now, none), hn::Zero(d), now);
      const auto weigh = [&](FloatVec s) HWY_ATTR {
        return exp2_of_nonpositive(d, hn::Mul(hn::Sub(s, origin), factor));
      };
      decay[v] = weigh(before);
      auto total = hn::Mul(hn::LoadU(d, total_ + at), decay[v]);
      const float* from = scores_ + v * kFloatLanes;
      float* to = probabilities_ + v * kFloatLanes;
      for (int64_t key = 0; key < count; key += Units::kElements) {
        const auto p0 = weigh(hn::LoadU(d, from + key * kBlockLanes));
        total = hn::Add(total, p0);
        if constexpr (Units::kElements == 1) {
          hn::StoreU(p0, d, to + key * kBlockLanes);
        } else {
          const auto p1 = weigh(hn::LoadU(d, from + (key + 1) * kBlockLanes));
          total = hn::Add(total, p1);
          hn::StoreU(pair_of(p0, p1), d, to + key / 2 * kBlockLanes);
        }
      }
      hn::StoreU(now, d, maximum_ + at);
      hn::StoreU(total, d, total_ + at);
    }
  }

  /// Rounds two probabilities to a bf16 pair, p0 in the lower half. Ties go up, which one in 2^16
  /// values notices; a NaN stays one, since those that bf16 inputs make have empty lower halves.
  static HWY_INLINE FloatVec pair_of(FloatVec p0, FloatVec p1) {
    const hn::RebindToUnsigned<FloatTag> du;
    const auto half = hn::Set(du, 0x8000);
    const auto low = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, p0), half));
    const auto high = hn::Add(hn::BitCast(du, p1), half);
    return hn::BitCast(FloatTag(), hn::OrAnd(low, high, hn::Set(du, 0xffff0000)));
  }

  /// sum_[d][lane] = sum_ * decay + values . probabilities
  void accumulate(int64_t first, int64_t count, const FloatVec (&decay)[kVectors]) {
    const FloatTag d;
    const int64_t units = ceil_div(count, Units::kElements);
    for (int64_t i = 0; i < padded_dim_; i += kTile) {
      float* to = sum_ + first * padded_dim_ + i * kBlockLanes;
      const std::byte* operand[kTile];
      FloatVec sum[kTile][kVectors];
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
        operand[t] = reinterpret_cast<const std::byte*>(values_ + i + t);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          sum[t][v] = hn::Mul(hn::LoadU(d, to + t * kBlockLanes + v * kFloatLanes), decay[v]);
        }
      }
      multiply<Units>(probabilities_, operand, padded_dim_ * 4, units, sum);
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          hn::StoreU(sum[t][v], d, to + t * kBlockLanes + v * kFloatLanes);
        }
      }
    }
  }

  /// The same where a value is infinite or NaN and some lane must not see it: 0 times it is NaN.
  void accumulate_seen(int64_t first, int64_t block, int64_t count,
                       const FloatVec (&decay)[kVectors]) {
    const FloatTag d;
    for (int v = 0; v < kVectors; ++v) {
      for (int64_t i = 0; i < value_dim_; ++i) {
        float* to = sum_ + first * padded_dim_ + i * kBlockLanes + v * kFloatLanes;
        auto sum = hn::Mul(hn::LoadU(d, to), decay[v]);
        for (int64_t key = 0; key < count; ++key) {
          const int64_t unit = key / Units::kElements;
          const int64_t part = key % Units::kElements;
          FloatVec p = hn::LoadU(d, probabilities_ + unit * kBlockLanes + v * kFloatLanes);
          if constexpr (Units::kElements == 2) {
            const hn::RebindToUnsigned<FloatTag> du;
            const auto bits = hn::BitCast(du, p);
            p = hn::BitCast(
                d, part == 0 ? hn::ShiftLeft<16>(bits) : hn::And(bits, hn::Set(du, 0xffff0000)));
          }
          Element value;
          std::memcpy(&value,
                      reinterpret_cast<const Element*>(values_ + unit * padded_dim_ + i) + part,
                      sizeof(value));
          sum = hn::IfThenElse(sees(first, v, block + key),
                               hn::MulAdd(p, hn::Set(d, to_float(value)), sum), sum);
        }
        hn::StoreU(sum, d, to);
      }
    }
  }

  /// query_[unit][lane]: four lanes at a time.
  void load_queries(Range rows, int64_t kv_head, Range lanes, int64_t padded) {
    for (int64_t i = 0; i < padded; i += 4) {
      const float* from[4];
      for (int64_t j = 0; j < 4; ++j) {
        // Beyond the last lane: the last once more; nobody reads the result.
        const Lane at = lane(rows, kv_head, std::min(lanes.begin + i + j, lanes.end - 1));
        limit_[i + j] = args_.positions[at.row];
        const Q* q = row<Q>(args_.q, at.row) + at.head * args_.head_dim;
        if constexpr (std::is_same_v<Q, Element>) {
          from[j] = reinterpret_cast<const float*>(q);
        } else {
          convert(q, args_.head_dim, rows_ + j * row_);
          from[j] = rows_ + j * row_;
        }
      }
      float* to = query_ + i / kBlockLanes * kBlockLanes * units_ + i % kBlockLanes;
      int64_t u = 0;
      for (; u + 4 <= units_; u += 4, to += 4 * kBlockLanes) {
        transpose_4x4({from[0] + u, from[1] + u, from[2] + u, from[3] + u},
                      {to, to + kBlockLanes, to + 2 * kBlockLanes, to + 3 * kBlockLanes});
      }
      for (; u < units_; ++u, to += kBlockLanes) {
        for (int64_t j = 0; j < 4; ++j) {
          std::memcpy(to + j, from[j] + u, sizeof(float));
        }
      }
    }
  }

  /// Keys as operands: where they lie if their format is the products', else converted.
  const std::byte* load_keys(const K* keys, int64_t count) {
    if constexpr (std::is_same_v<K, Element>) {
      return reinterpret_cast<const std::byte*>(keys);
    } else {
      convert(keys, count * args_.head_dim, reinterpret_cast<float*>(keys_));
      return keys_;
    }
  }

  /// values_[unit][dim]: f32, or the bf16 of two keys in a pair. Whether all are finite.
  bool load_values(const K* values, int64_t count) {
    const FloatTag d;
    const int64_t dim = value_dim_;
    float* to = values_;
    auto check = hn::Zero(d);  // stays 0 while all are finite: 0 * infinity is NaN
    const auto inspect = [&](FloatVec x) HWY_ATTR { check = hn::MulAdd(x, hn::Zero(d), check); };
    const int64_t lanes = kFloatLanes;
    for (int64_t key = 0; key < count; key += Units::kElements, to += padded_dim_) {
      const K* row = values + key * dim;
      const bool pair = Units::kElements == 2 && key + 1 < count;
      for (int64_t i = 0; i < dim; i += lanes) {
        const bool whole = i + lanes <= dim;
        const auto fetch = [&](const K* p) HWY_ATTR {
          return whole ? load(d, p + i) : load_first(d, p + i, dim - i);
        };
        FloatVec unit = fetch(row);
        inspect(unit);
        if constexpr (Units::kElements == 2) {
          const hn::RebindToUnsigned<FloatTag> du;
          const FloatVec second = pair ? fetch(row + dim) : hn::Zero(d);
          inspect(second);
          unit = hn::BitCast(
              d, hn::Or(hn::ShiftRight<16>(hn::BitCast(du, unit)), hn::BitCast(du, second)));
        }
        if (whole) {
          hn::StoreU(unit, d, to + i);
        } else {
          store_first(d, unit, to + i, dim - i);
        }
      }
      std::fill(to + dim, to + padded_dim_, 0.0f);
    }
    return hn::AllTrue(d, hn::Eq(check, hn::Zero(d)));
  }

  template <class T>
  static void convert(const T* from, int64_t count, float* to) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      store(d, load(d, from + i), to + i);
    }
    for (; i < count; ++i) {
      to[i] = to_float(from[i]);
    }
  }

  void write(Range rows, int64_t kv_head, Range lanes) {
    const int64_t dim = value_dim_;
    for (int64_t i = 0; i < lanes.size(); i += 4) {
      const float* from = sum_ + i / kBlockLanes * kBlockLanes * padded_dim_ + i % kBlockLanes;
      float* const to[4] = {rows_, rows_ + row_, rows_ + 2 * row_, rows_ + 3 * row_};
      int64_t c = 0;
      for (; c + 4 <= dim; c += 4, from += 4 * kBlockLanes) {
        transpose_4x4({from, from + kBlockLanes, from + 2 * kBlockLanes, from + 3 * kBlockLanes},
                      {to[0] + c, to[1] + c, to[2] + c, to[3] + c});
      }
      for (; c < dim; ++c, from += kBlockLanes) {
        for (int64_t j = 0; j < 4; ++j) {
          to[j][c] = from[j];
        }
      }
      for (int64_t j = 0; j < std::min<int64_t>(4, lanes.size() - i); ++j) {
        const Lane at = lane(rows, kv_head, lanes.begin + i + j);
        write_head(args_, at.row, at.head, {0, dim}, to[j],
                   normaliser(args_, at.head, maximum_[i + j] * args_.scale, total_[i + j]));
      }
    }
  }

  const AttentionArgs& args_;
  const int64_t group_ = args_.query_heads / args_.kv_heads;
  const int64_t units_ = args_.head_dim / Units::kElements;
  const int64_t value_dim_;
  const int64_t pass_lanes_;
  const int64_t padded_dim_ = round_up(value_dim_, kTile);
  const int64_t row_ = std::max(padded_dim_, round_up(args_.head_dim, kTile));
  float* query_;          // [lane block][unit][kBlockLanes]
  float* sum_;            // [lane block][padded_dim_][kBlockLanes], unnormalised
  float* maximum_;        // [lane] of q.k, before scale
  float* total_;          // [lane] of the probabilities
  int32_t* limit_;        // [lane] its row's position
  float* scores_;         // [key][kBlockLanes]
  float* probabilities_;  // [unit][kBlockLanes]
  std::byte* keys_;       // [key][head_dim] f32, where the cache has another format
  float* values_;         // [unit][padded_dim_]
  float* rows_;           // [4][row_], of queries or results
  int64_t floats_ = 0;    // of scratch in all
};

/// Calls f with a value of q's and one of the cache's type.
template <class F>
decltype(auto) with_formats(const AttentionArgs& args, F&& f) {
  const bool bf16_q = args.q.dtype == DType::bf16;
  if (args.cache.dtype == DType::bf16) {
    return bf16_q ? f(bf16{}, bf16{}) : f(float{}, bf16{});
  }
  return bf16_q ? f(bf16{}, float{}) : f(float{}, float{});
}

/// The class for many rows; bf16_dot: VDPBF16PS is there.
template <class F>
decltype(auto) with_chunk_kernel(const AttentionArgs& args, [[maybe_unused]] bool bf16_dot, F&& f) {
#if HWY_TARGET == HWY_AVX3
  if (bf16_dot && args.q.dtype == DType::bf16 && args.cache.dtype == DType::bf16) {
    return f(static_cast<ChunkAttention<Bf16Pairs, bf16, bf16>*>(nullptr));
  }
#endif
  return with_formats(args, [&](auto q, auto k) {
    return f(static_cast<ChunkAttention<F32Units<float>, decltype(q), decltype(k)>*>(nullptr));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
