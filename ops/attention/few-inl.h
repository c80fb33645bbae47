// Attention for few rows: decode, whose limit is the bandwidth of the KV cache. Vector lanes run
// along head_dim, so that each key and value is read once, in the order in which it lies, for all
// query heads of its group; arithmetic is f32.
//
// A row of a bf16 cache is loaded as 32-bit lanes and split into even and odd elements, which takes
// one shift and one mask; queries and sums are kept in that order too.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/attention/op.h"

#if defined(WEFT_OPS_ATTENTION_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ATTENTION_FEW_INL_H_
#undef WEFT_OPS_ATTENTION_FEW_INL_H_
#else
#define WEFT_OPS_ATTENTION_FEW_INL_H_
#endif

#include "arch/cpu/vector-inl.h"
#include "ops/attention/write-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Query heads that share a load of a key or value: their accumulators fit the registers.
inline constexpr int kSharedHeads = 4;

/// Two vectors of a cache row: elements 2i and 2i + 1 (bf16), or the first and second half (f32).
struct RowPart {
  FloatVec first;
  FloatVec second;
};

inline constexpr int64_t kPartElements = 2 * kFloatLanes;

/// Part `part` of a row of `count` elements, zeros beyond them. `count` is even.
HWY_INLINE RowPart fetch(const bf16* row, int64_t part, int64_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto* p = reinterpret_cast<const uint32_t*>(row + part * kPartElements);
  const int64_t rest = count / 2 - part * kFloatLanes;
  const auto pairs = rest >= static_cast<int64_t>(kFloatLanes)
                         ? hn::LoadU(du, p)
                         : hn::MaskedLoad(hn::FirstN(du, rest), du, p);
  return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000)))};
}
HWY_INLINE RowPart fetch(const float* row, int64_t part, int64_t count) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto at = [&](int64_t i) HWY_ATTR {
    return i + lanes <= count ? hn::LoadU(d, row + i)
           : i < count        ? hn::MaskedLoad(hn::FirstN(d, count - i), d, row + i)
                              : hn::Zero(d);
  };
  return {at(part * kPartElements), at(part * kPartElements + lanes)};
}

/// Where fetch() puts element i.
template <class K>
constexpr int64_t place_of(int64_t i) {
  if constexpr (std::is_same_v<K, bf16>) {
    const int64_t part = i / kPartElements;
    return part * kPartElements + i % 2 * kFloatLanes + i % kPartElements / 2;
  } else {
    return i;
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Of each 128-bit block: the sums of a's, b's, c's and e's four lanes.
HWY_INLINE FloatVec sum_blocks(FloatVec a, FloatVec b, FloatVec c, FloatVec e) {
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> d64;
  const auto ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const auto ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab64, ce64)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, ab64, ce64)));
}
/// Of each of the vectors, the sum of lower and upper half: a's in the lower half of the result.
HWY_INLINE FloatVec sum_halves(FloatVec a, FloatVec b) {
  const FloatTag d;
  return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
}
#endif

/// Lane i of the result: the sum of the lanes of row i of `rows` [kFloatLanes][kFloatLanes].
HWY_INLINE FloatVec sum_rows(const float* rows) {
  const FloatTag d;
#if HWY_TARGET == HWY_SCALAR
  return hn::LoadU(d, rows);
#else
  const auto four = [&](int64_t first) HWY_ATTR {
    const auto at = [&](int64_t i) HWY_ATTR { return hn::LoadU(d, rows + i * kFloatLanes); };
    return sum_blocks(at(first), at(first + 1), at(first + 2), at(first + 3));
  };
#if HWY_TARGET == HWY_AVX2
  return sum_halves(four(0), four(4));
#else
  const auto x = sum_halves(four(0), four(8));
  const auto y = sum_halves(four(4), four(12));
  return hn::Add(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(y), x),
                 hn::OddEvenBlocks(y, hn::SwapAdjacentBlocks(x)));
#endif
#endif
}

template <class Q, class K>
class FewAttention {
 public:
  FewAttention(const AttentionArgs& args, std::byte* scratch) : args_(args) {
    auto* base = reinterpret_cast<float*>(scratch);
    const auto take = [&](int64_t floats) {
      const int64_t at = floats_;
      floats_ += (floats + 15) / 16 * 16;
      return base == nullptr ? nullptr : base + at;
    };
    query_ = take(group_ * padded_dim_);
    sum_ = take(group_ * padded_dim_);
    total_ = take(group_ * kFloatLanes);
    maximum_ = take(group_);
    products_ = take(kSharedHeads * kAttentionBlock * kFloatLanes);
    probabilities_ = take(kSharedHeads * kAttentionBlock);
    line_ = take(args.head_dim);
  }

  static size_t scratch_bytes(const AttentionArgs& args) {
    return FewAttention(args, nullptr).floats_ * sizeof(float);
  }

  /// One row, the query heads of one KV head, one split.
  void run(int64_t row_index, int64_t kv_head, int64_t split) {
    const int64_t dim = args_.head_dim;
    std::fill(query_, query_ + group_ * padded_dim_, 0.0f);
    const Q* q = row<Q>(args_.q, row_index) + kv_head * group_ * dim;
    for (int64_t h = 0; h < group_; ++h) {
      for (int64_t i = 0; i < dim; ++i) {
        query_[h * padded_dim_ + place_of<K>(i)] = to_float(q[h * dim + i]);
      }
    }
    std::fill(sum_, sum_ + group_ * padded_dim_, 0.0f);
    std::fill(total_, total_ + group_ * kFloatLanes, 0.0f);
    std::fill(maximum_, maximum_ + group_, -__builtin_inff());

    const Range keys =
        attention_split(args_.positions[row_index], args_.window, args_.splits, split);
    const int64_t head = kv_head * args_.cache.head_stride;
    for (int64_t key = keys.begin; key < keys.end;) {
      const int64_t end = std::min(keys.end, (key / kAttentionBlock + 1) * kAttentionBlock);
      const K* key_rows = static_cast<const K*>(args_.cache.keys) + head + key * dim;
      const K* value_rows = static_cast<const K*>(args_.cache.values) + head + key * dim;
      int64_t h = 0;
      for (; h + kSharedHeads <= group_; h += kSharedHeads) {
        attend<kSharedHeads>(h, key_rows, value_rows, end - key);
      }
      switch (group_ - h) {
        case 3:
          attend<3>(h, key_rows, value_rows, end - key);
          break;
        case 2:
          attend<2>(h, key_rows, value_rows, end - key);
          break;
        case 1:
          attend<1>(h, key_rows, value_rows, end - key);
          break;
        default:
          break;
      }
      key = end;
    }
    for (int64_t h = 0; h < group_; ++h) {
      finish(row_index, kv_head * group_ + h, h, split);
    }
  }

 private:
  template <int kHeads>
  void attend(int64_t h, const K* keys, const K* values, int64_t count) {
    score<kHeads>(query_ + h * padded_dim_, keys, values, count);
    float decay[kHeads];
    for (int i = 0; i < kHeads; ++i) {
      decay[i] = soften(h + i, products_ + i * kAttentionBlock * kFloatLanes, count,
                        probabilities_ + i * kAttentionBlock);
    }
    accumulate<kHeads>(values, count, decay, sum_ + h * padded_dim_);
  }

  /// products_[head][key][lane]: summed over the lanes, q.k.
  template <int kHeads>
  void score(const float* HWY_RESTRICT query, const K* keys, const K* values, int64_t count) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    for (int64_t key = 0; key < count; key += 2) {
      const K* k0 = keys + key * dim;
      const K* k1 = keys + std::min(key + 1, count - 1) * dim;
      // This block's values come next, and only a stream of reads keeps the memory busy.
      for (int64_t i = 0; i < 2 * dim; i += 64 / static_cast<int64_t>(sizeof(K))) {
        __builtin_prefetch(values + key * dim + i);
      }
      FloatVec s0[kHeads];
      FloatVec s1[kHeads];
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        s0[h] = s1[h] = hn::Zero(d);
      }
      for (int64_t part = 0; part < parts_; ++part) {
        const RowPart a = fetch(k0, part, dim);
        const RowPart b = fetch(k1, part, dim);
#pragma GCC unroll 8
        for (int h = 0; h < kHeads; ++h) {
          const float* q = query + h * padded_dim_ + part * kPartElements;
          const auto first = hn::LoadU(d, q);
          const auto second = hn::LoadU(d, q + kFloatLanes);
          s0[h] = hn::MulAdd(second, a.second, hn::MulAdd(first, a.first, s0[h]));
          s1[h] = hn::MulAdd(second, b.second, hn::MulAdd(first, b.first, s1[h]));
        }
      }
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        float* to = products_ + (h * kAttentionBlock + key) * kFloatLanes;
        hn::StoreU(s0[h], d, to);
        hn::StoreU(s1[h], d, to + kFloatLanes);
      }
    }
  }

  /// Products to probabilities against the new maximum. Returns what older sums are scaled with.
  float soften(int64_t head, float* products, int64_t count, float* probabilities) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    const auto none = hn::Set(d, -__builtin_inff());
    auto best = none;
    for (int64_t key = 0; key < count; key += lanes) {
      auto s = sum_rows(products + key * lanes);
      if (count - key < lanes) {
        s = hn::IfThenElse(hn::FirstN(d, count - key), s, none);
      }
      best = hn::Max(best, s);
      hn::StoreU(s, d, probabilities + key);
    }
    const float before = maximum_[head];
    const float largest = hn::GetLane(hn::MaxOfLanes(d, best));
    const float now = largest > before ? largest : before;
    // A head that has seen only -infinity: any finite origin gives exp(-infinity) = 0.
    const auto origin = hn::Set(d, now == -__builtin_inff() ? 0 : now);
    const auto factor = hn::Set(d, args_.scale * 1.44269504f);
    const auto weigh = [&](FloatVec s) HWY_ATTR {
      return exp2_of_nonpositive(d, hn::Mul(hn::Sub(s, origin), factor));
    };
    const auto decay = weigh(hn::Set(d, before));
    auto total = hn::Mul(hn::LoadU(d, total_ + head * lanes), decay);
    for (int64_t key = 0; key < count; key += lanes) {
      const auto p = weigh(hn::LoadU(d, probabilities + key));
      total = hn::Add(total, p);
      hn::StoreU(p, d, probabilities + key);
    }
    hn::StoreU(total, d, total_ + head * lanes);
    maximum_[head] = now;
    return hn::GetLane(decay);
  }

  /// sum[head] = sum[head] * decay[head] + probabilities . values
  template <int kHeads>
  void accumulate(const K* values, int64_t count, const float (&decay)[kHeads],
                  float* HWY_RESTRICT sums) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    for (int64_t part = 0; part < parts_; ++part) {
      FloatVec first[kHeads];
      FloatVec second[kHeads];
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const float* sum = sums + h * padded_dim_ + part * kPartElements;
        const auto scale = hn::Set(d, decay[h]);
        first[h] = hn::Mul(hn::LoadU(d, sum), scale);
        second[h] = hn::Mul(hn::LoadU(d, sum + kFloatLanes), scale);
      }
      for (int64_t key = 0; key < count; ++key) {
        const RowPart v = fetch(values + key * dim, part, dim);
#pragma GCC unroll 8
        for (int h = 0; h < kHeads; ++h) {
          const auto p = hn::Set(d, probabilities_[h * kAttentionBlock + key]);
          first[h] = hn::MulAdd(p, v.first, first[h]);
          second[h] = hn::MulAdd(p, v.second, second[h]);
        }
      }
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        float* sum = sums + h * padded_dim_ + part * kPartElements;
        hn::StoreU(first[h], d, sum);
        hn::StoreU(second[h], d, sum + kFloatLanes);
      }
    }
  }

  void finish(int64_t row_index, int64_t query_head, int64_t h, int64_t split) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    const float total = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, total_ + h * kFloatLanes)));
    float* line =
        args_.splits == 1
            ? line_
            : args_.partials +
                  ((row_index * args_.query_heads + query_head) * args_.splits + split) * (dim + 2);
    for (int64_t i = 0; i < dim; ++i) {
      line[i] = sum_[h * padded_dim_ + place_of<K>(i)];
    }
    if (args_.splits == 1) {
      write_head(args_, row_index, query_head, {0, dim}, line, 1 / total);
    } else {
      line[dim] = maximum_[h] * args_.scale;
      line[dim + 1] = total;
    }
  }

  const AttentionArgs& args_;
  const int64_t group_ = args_.query_heads / args_.kv_heads;
  const int64_t parts_ = (args_.head_dim + kPartElements - 1) / kPartElements;
  const int64_t padded_dim_ = parts_ * kPartElements;
  float* query_;          // [group][padded_dim_], in fetch()'s order
  float* sum_;            // the same, unnormalised
  float* total_;          // [group][kFloatLanes]: of the probabilities, by lane
  float* maximum_;        // [group] of q.k, before scale
  float* products_;       // [kSharedHeads][kAttentionBlock][kFloatLanes]
  float* probabilities_;  // [kSharedHeads][kAttentionBlock]
  float* line_;           // [head_dim]
  int64_t floats_ = 0;    // of scratch in all
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
