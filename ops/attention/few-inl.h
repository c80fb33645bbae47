// Attention for few rows: decode, whose limit is the bandwidth of the KV cache. Vector lanes run
// along head_dim, so that each key and value is read once, in the order in which it lies, for all
// query heads of its group; arithmetic is f32.
//
// A row of a bf16 cache is loaded as 32-bit lanes and split into even and odd elements, which takes
// one shift and one mask; queries and sums are kept in that order too.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/divide.h"
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
/// Keys that share a load of the queries.
inline constexpr int kSharedKeys = HWY_TARGET == HWY_AVX3 ? 4 : 2;
/// Parts of a value (see RowPart) whose sums fit the registers.
inline constexpr int kPartsAtOnce = HWY_TARGET == HWY_AVX3 ? 2 : 1;

/// Keeps a loaded vector in its register: left alone, g++ 12 loads it anew for every use, and loads
/// are what this kernel has most of.
HWY_INLINE FloatVec in_register(FloatVec v) {
  asm("" : "+v"(v.raw));
  return v;
}

/// Asks for `count` elements of what comes next. Little by little between products: many prefetch
/// instructions in a row fill the processor's miss buffers, and then it drops them.
template <class T>
HWY_INLINE void ask_for(const T* from, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) {
    __builtin_prefetch(from + i, 0, 2);
  }
}

/// Keys that lie in a row.
template <class K>
struct KeyBlock {
  const K* rows = nullptr;
  int64_t count = 0;
};
/// A task's keys from `key`, one of its, to the end of the block.
template <class K>
KeyBlock<K> key_block(const AttentionArgs& args, const AttentionTask& task, int64_t key) {
  const Range keys =
      attention_split(args.positions[task.row], args.window, args.splits, task.split);
  return {static_cast<const K*>(args.cache.keys) +
              args.cache.place(task.row, task.kv_head, key, args.head_dim),
          std::min(keys.end, (key / kAttentionBlock + 1) * kAttentionBlock) - key};
}
/// The first block of a task's keys; of a split without keys none.
template <class K>
KeyBlock<K> first_keys(const AttentionArgs& args, const AttentionTask& task) {
  const Range keys =
      attention_split(args.positions[task.row], args.window, args.splits, task.split);
  return keys.empty() ? KeyBlock<K>{} : key_block<K>(args, task, keys.begin);
}

/// Two vectors of a cache row: elements 2i and 2i + 1 (bf16), or the first and second half (f32).
struct RowPart {
  FloatVec first;
  FloatVec second;
};

inline constexpr int64_t kPartElements = 2 * kFloatLanes;

/// Part `part` of a row of `count` elements, zeros beyond them. `count` is even; kWhole: a multiple
/// of kPartElements.
template <bool kWhole>
HWY_INLINE RowPart fetch(const bf16* row, int64_t part, int64_t count) {
  const FloatTag d;
  const hn::RebindToUnsigned<FloatTag> du;
  const auto* p = reinterpret_cast<const uint32_t*>(row + part * kPartElements);
  const int64_t rest = count / 2 - part * kFloatLanes;
  const auto pairs = kWhole || rest >= static_cast<int64_t>(kFloatLanes)
                         ? hn::LoadU(du, p)
                         : hn::MaskedLoad(hn::FirstN(du, rest), du, p);
  return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
          hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xffff0000)))};
}
template <bool kWhole>
HWY_INLINE RowPart fetch(const float* row, int64_t part, int64_t count) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto at = [&](int64_t i) HWY_ATTR {
    return kWhole || i + lanes <= count ? hn::LoadU(d, row + i)
           : i < count                  ? hn::MaskedLoad(hn::FirstN(d, count - i), d, row + i)
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
      floats_ += round_up(floats, 16);
      return base == nullptr ? nullptr : base + at;
    };
    query_ = take(group_ * padded_dim_);
    sum_ = take(group_ * padded_dim_);
    total_ = take(group_ * kFloatLanes);
    maximum_ = take(group_);
    products_ = take(kSharedHeads * kProductRows * kFloatLanes);
    probabilities_ = take(kSharedHeads * kAttentionBlock);
    line_ = take(args.head_dim);
  }

  static size_t scratch_bytes(const AttentionArgs& args) {
    return FewAttention(args, nullptr).floats_ * sizeof(float);
  }

  /// Asks for the first keys of `next`; null: of nothing.
  void run(const AttentionTask& task, const AttentionTask* next) {
    const auto [row_index, kv_head, split] = task;
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
    for (int64_t key = keys.begin; key < keys.end;) {
      const KeyBlock<K> block = key_block<K>(args_, task, key);
      const int64_t end = key + block.count;
      const K* value_rows = static_cast<const K*>(args_.cache.values) +
                            args_.cache.place(row_index, kv_head, key, dim);
      const KeyBlock<K> following = end < keys.end    ? key_block<K>(args_, task, end)
                                    : next != nullptr ? first_keys<K>(args_, *next)
                                                      : KeyBlock<K>{};
      Ahead ahead{value_rows, following};
      int64_t h = 0;
      for (; h + kSharedHeads <= group_; h += kSharedHeads) {
        attend<kSharedHeads>(h, block, value_rows, ahead);
        ahead = {};
      }
      switch (group_ - h) {
        case 3:
          attend<3>(h, block, value_rows, ahead);
          break;
        case 2:
          attend<2>(h, block, value_rows, ahead);
          break;
        case 1:
          attend<1>(h, block, value_rows, ahead);
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
  /// What is asked for while a block is computed: its values with its scores, and the keys that
  /// come next with its sums. Null: it is there already, or there is none.
  struct Ahead {
    const K* values = nullptr;
    KeyBlock<K> keys;
  };

  /// A block of keys and its values.
  template <int kHeads>
  void attend(int64_t h, KeyBlock<K> keys, const K* values, const Ahead& ahead) {
    if (args_.head_dim == padded_dim_) {
      attend_as<kHeads, true>(h, keys.rows, values, keys.count, ahead);
    } else {
      attend_as<kHeads, false>(h, keys.rows, values, keys.count, ahead);
    }
  }

  template <int kHeads, bool kWhole>
  void attend_as(int64_t h, const K* keys, const K* values, int64_t count, const Ahead& ahead) {
    score<kHeads, kWhole>(query_ + h * padded_dim_, keys, count, ahead.values);
    float decay[kHeads];
    soften<kHeads>(h, count, decay);
    float* sums = sum_ + h * padded_dim_;
    int64_t part = 0;
    for (; part + kPartsAtOnce <= parts_; part += kPartsAtOnce) {
      accumulate<kHeads, kWhole, kPartsAtOnce>(values, count, part, decay, sums, ahead);
    }
    for (; part < parts_; ++part) {
      accumulate<kHeads, kWhole, 1>(values, count, part, decay, sums, ahead);
    }
  }

  /// probabilities_[head][key] = q.k. Asks for as many rows of `ahead`.
  template <int kHeads, bool kWhole>
  void score(const float* HWY_RESTRICT query, const K* keys, int64_t count, const K* ahead) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    for (int64_t first = 0; first < count; first += lanes) {
      for (int64_t key = first; key < std::min(first + lanes, count); key += kSharedKeys) {
        if (ahead != nullptr) {
          const int64_t dim = args_.head_dim;
          ask_for(ahead + key * dim, std::min<int64_t>(kSharedKeys, count - key) * dim);
        }
        multiply<kHeads, kWhole>(query, keys + key * args_.head_dim, count - key,
                                 products_ + (key - first) * lanes);
      }
      for (int h = 0; h < kHeads; ++h) {
        float* scores = probabilities_ + h * kAttentionBlock + first;
        hn::StoreU(sum_rows(products_ + h * kProductRows * lanes), d, scores);
        if (args_.soft_cap > 0) {
          cap_scores(args_, scores, lanes);
        }
      }
    }
  }

  /// to[head][key][lane]: summed over the lanes, q.k of the first kSharedKeys of `count` keys;
  /// beyond the last the last once more.
  template <int kHeads, bool kWhole>
  HWY_INLINE void multiply(const float* HWY_RESTRICT query, const K* keys, int64_t count,
                           float* HWY_RESTRICT to) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    const int64_t dim = args_.head_dim;
    const K* key_row[kSharedKeys];
    FloatVec sum[kHeads][kSharedKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kSharedKeys; ++k) {
      key_row[k] = keys + (k < count ? k : count - 1) * dim;
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        sum[h][k] = hn::Zero(d);
      }
    }
    const int64_t parts = parts_;
    const int64_t padded_dim = padded_dim_;
    for (int64_t part = 0; part < parts; ++part) {
      RowPart row[kSharedKeys];
#pragma GCC unroll 8
      for (int k = 0; k < kSharedKeys; ++k) {
        row[k] = fetch<kWhole>(key_row[k], part, dim);
      }
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const float* q = query + h * padded_dim + part * kPartElements;
        const auto first = in_register(hn::LoadU(d, q));
        const auto second = in_register(hn::LoadU(d, q + lanes));
#pragma GCC unroll 8
        for (int k = 0; k < kSharedKeys; ++k) {
          sum[h][k] = hn::MulAdd(second, row[k].second, hn::MulAdd(first, row[k].first, sum[h][k]));
        }
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 8
      for (int k = 0; k < kSharedKeys; ++k) {
        hn::StoreU(sum[h][k], d, to + (h * kProductRows + k) * lanes);
      }
    }
  }

  /// Scores to probabilities against the new maximum. decay: what older sums are scaled with. The
  /// heads run side by side, because each step of one waits for the step before.
  template <int kHeads>
  void soften(int64_t head, int64_t count, float (&decay)[kHeads]) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    const auto none = hn::Set(d, -__builtin_inff());
    const auto factor = hn::Set(d, args_.scale * 1.44269504f);
    FloatVec best[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      float* scores = probabilities_ + h * kAttentionBlock;
      if (count % lanes != 0) {  // lanes beyond the last key
        float* last = scores + count / lanes * lanes;
        const auto valid = hn::FirstN(d, count % lanes);
        hn::StoreU(hn::IfThenElse(valid, hn::LoadU(d, last), none), d, last);
      }
      best[h] = none;
      for (int64_t key = 0; key < count; key += lanes) {
        best[h] = hn::Max(best[h], hn::LoadU(d, scores + key));
      }
    }
    FloatVec origin[kHeads];
    FloatVec total[kHeads];
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const auto before = hn::Set(d, maximum_[head + h]);
      const auto now = hn::Max(before, hn::MaxOfLanes(d, best[h]));
      maximum_[head + h] = hn::GetLane(now);
      // A head that has seen only -infinity: any finite origin gives exp(-infinity) = 0.
      origin[h] = hn::IfThenElse(hn::Eq(now, none), hn::Zero(d), now);
      const auto scale = exp2_of_nonpositive(d, hn::Mul(hn::Sub(before, origin[h]), factor));
      decay[h] = hn::GetLane(scale);
      total[h] = hn::Mul(hn::LoadU(d, total_ + (head + h) * lanes), scale);
    }
    for (int64_t key = 0; key < count; key += lanes) {
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        float* at = probabilities_ + h * kAttentionBlock + key;
        const auto p =
            exp2_of_nonpositive(d, hn::Mul(hn::Sub(hn::LoadU(d, at), origin[h]), factor));
        total[h] = hn::Add(total[h], p);
        hn::StoreU(p, d, at);
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      hn::StoreU(total[h], d, total_ + (head + h) * lanes);
    }
  }

  /// sum[head] = sum[head] * decay[head] + probabilities . values, of kParts parts from `part` on.
  /// Asks for these parts of the next keys.
  template <int kHeads, bool kWhole, int kParts>
  void accumulate(const K* values, int64_t count, int64_t part, const float (&decay)[kHeads],
                  float* HWY_RESTRICT sums, const Ahead& ahead) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    const float* HWY_RESTRICT probabilities = probabilities_;
    FloatVec sum[kHeads][2 * kParts];
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      const float* from = sums + h * padded_dim_ + part * kPartElements;
      const auto scale = hn::Set(d, decay[h]);
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kParts; ++v) {
        sum[h][v] = hn::Mul(hn::LoadU(d, from + v * kFloatLanes), scale);
      }
    }
    const int64_t column = part * kPartElements;
    const int64_t columns = std::min(kParts * kPartElements, dim - column);
    constexpr int64_t kLine = 64 / sizeof(K);  // asked for once, however many parts it is
    const int64_t asked = column % kLine == 0 ? ahead.keys.count : 0;
    for (int64_t key = 0; key < count; ++key) {
      if (key < asked) {
        ask_for(ahead.keys.rows + key * dim + column, columns);
      }
      RowPart v[kParts];
#pragma GCC unroll 8
      for (int p = 0; p < kParts; ++p) {
        v[p] = fetch<kWhole>(values + key * dim, part + p, dim);
      }
#pragma GCC unroll 8
      for (int h = 0; h < kHeads; ++h) {
        const auto probability = hn::Set(d, probabilities[h * kAttentionBlock + key]);
#pragma GCC unroll 8
        for (int p = 0; p < kParts; ++p) {
          sum[h][2 * p] = hn::MulAdd(probability, v[p].first, sum[h][2 * p]);
          sum[h][2 * p + 1] = hn::MulAdd(probability, v[p].second, sum[h][2 * p + 1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int h = 0; h < kHeads; ++h) {
      float* to = sums + h * padded_dim_ + part * kPartElements;
#pragma GCC unroll 8
      for (int v = 0; v < 2 * kParts; ++v) {
        hn::StoreU(sum[h][v], d, to + v * kFloatLanes);
      }
    }
  }

  void finish(int64_t row_index, int64_t query_head, int64_t h, int64_t split) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    const float total = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, total_ + h * kFloatLanes)));
    float* line =
        args_.partials == nullptr
            ? line_
            : args_.partials +
                  ((row_index * args_.query_heads + query_head) * args_.splits + split) * (dim + 2);
    for (int64_t i = 0; i < dim; ++i) {
      line[i] = sum_[h * padded_dim_ + place_of<K>(i)];
    }
    if (args_.partials == nullptr) {
      write_head(args_, row_index, query_head, {0, dim}, line,
                 normaliser(args_, query_head, maximum_[h] * args_.scale, total));
    } else {
      line[dim] = maximum_[h] * args_.scale;
      line[dim + 1] = total;
    }
  }

  /// Of products_: as many keys as lanes, in whole steps.
  static constexpr int64_t kProductRows = kFloatLanes < kSharedKeys ? kSharedKeys : kFloatLanes;

  const AttentionArgs& args_;
  const int64_t group_ = args_.query_heads / args_.kv_heads;
  const int64_t parts_ = ceil_div(args_.head_dim, kPartElements);
  const int64_t padded_dim_ = parts_ * kPartElements;
  float* query_;          // [group][padded_dim_], in fetch()'s order
  float* sum_;            // the same, unnormalised
  float* total_;          // [group][kFloatLanes]: of the probabilities, by lane
  float* maximum_;        // [group] of q.k, before scale
  float* products_;       // [kSharedHeads][kProductRows][lane]
  float* probabilities_;  // [kSharedHeads][kAttentionBlock]
  float* line_;           // [head_dim]
  int64_t floats_ = 0;    // of scratch in all
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
