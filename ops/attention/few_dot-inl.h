// Attention for few rows over a bf16 cache with bf16 dot products (VDPBF16PS), as accurate as f32:
// queries and probabilities are split in two bf16 pieces each, which keeps 17 bits of them, and
// sums are f32. Beside few-inl.h this saves no products but nearly all that is around them: keys
// are multiplied as they lie, values after one interleaving, and sums over lanes vanish.
//
// Scores: a vector's four 128-bit blocks are four query heads of one KV head. Eight elements of a
// key, broadcast to all blocks, meet the same elements of the four queries; what is left to add up
// at the end of a row are the four lanes of each block, for four keys at a time.
// Values: the rows of two keys, interleaved, meet the pair of their probabilities.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/attention/op.h"

#if defined(WEFT_OPS_ATTENTION_FEW_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ATTENTION_FEW_DOT_INL_H_
#undef WEFT_OPS_ATTENTION_FEW_DOT_INL_H_
#else
#define WEFT_OPS_ATTENTION_FEW_DOT_INL_H_
#endif

#include "arch/cpu/dot_units-inl.h"
#include "ops/attention/few-inl.h"

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class Q>
class FewDotAttention {
 public:
  /// Heads that this pays for, in rows that are whole vectors. Needs Isa::avx512_bf16.
  static bool suits(const AttentionArgs& args) {
    return args.cache.dtype == DType::bf16 && args.head_dim % kPart == 0 &&
           args.query_heads / args.kv_heads > 1;
  }

  FewDotAttention(const AttentionArgs& args, std::byte* scratch)
      : args_(args), exact_(args, scratch) {
    std::byte* base = scratch;
    size_t at = FewAttention<Q, bf16>::scratch_bytes(args);
    const auto take = [&](auto*& pointer, int64_t elements) {
      pointer = base == nullptr ? nullptr : reinterpret_cast<decltype(+pointer)>(base + at);
      at += (static_cast<size_t>(elements) * sizeof(*pointer) + 63) / 64 * 64;
    };
    take(query_, 2 * args.head_dim * kHeads);
    take(sum_, kHeads * args.head_dim);
    take(scores_, kHeads * kAttentionBlock);
    take(pairs_, 2 * kHeads * kAttentionBlock);
    take(line_, args.head_dim);
    bytes_ = at;
  }

  static size_t scratch_bytes(const AttentionArgs& args) {
    return FewDotAttention(args, nullptr).bytes_;
  }

  /// Asks for the first keys of `next`; null: of nothing.
  void run(const AttentionTask& task, const AttentionTask* next) {
    bool finite = true;
    const int64_t group = args_.query_heads / args_.kv_heads;
    for (int64_t h = 0; h < group; h += kHeads) {
      const int64_t first = task.kv_head * group + h;
      switch (std::min(group - h, kHeads)) {
        case 1:
          finite = attend<1>(task, first, next) && finite;
          break;
        case 2:
          finite = attend<2>(task, first, next) && finite;
          break;
        case 3:
          finite = attend<3>(task, first, next) && finite;
          break;
        default:
          finite = attend<4>(task, first, next) && finite;
      }
    }
    if (!finite) {  // the pieces of a number multiply an infinity to NaN where the number does not
      exact_.run(task, next);
    }
  }

 private:
  static constexpr int64_t kHeads = 4;  // blocks of a vector
  static constexpr int64_t kChunk = 8;  // elements of a block
  static constexpr int64_t kKeys = 8;   // that share a load of the queries
  static constexpr int64_t kPart = 64;  // columns of values whose sums fit the registers
  static constexpr int64_t kRows = 16;  // of values, read whole before the next: as they lie

  /// Query heads [head, head + kCount). False: a result is not finite.
  template <int kCount>
  bool attend(const AttentionTask& task, int64_t head, const AttentionTask* next) {
    const auto [row_index, kv_head, split] = task;
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    prepare(row<Q>(args_.q, row_index) + head * dim, kCount);
    std::fill(sum_, sum_ + kCount * dim, 0.0f);
    auto maximum = hn::Set(d, -__builtin_inff());  // [block], in all its lanes
    auto total = hn::Zero(d);                      // [block][lane]
    const Range keys =
        attention_split(args_.positions[row_index], args_.window, args_.splits, split);
    for (int64_t key = keys.begin; key < keys.end;) {
      const KeyBlock<bf16> block = key_block<bf16>(args_, task, key);
      const bf16* values = static_cast<const bf16*>(args_.cache.values) +
                           args_.cache.place(row_index, kv_head, key, dim);
      score(block.rows, block.count, values);
      float decay[kHeads];
      soften(block.count, maximum, total, decay);
      key += block.count;
      const KeyBlock<bf16> following = key < keys.end    ? key_block<bf16>(args_, task, key)
                                       : next != nullptr ? first_keys<bf16>(args_, *next)
                                                         : KeyBlock<bf16>{};
      accumulate<kCount>(values, block.count, decay, following);
    }
    return finish(row_index, head, kCount, split, maximum, total);
  }

  /// query_[chunk][piece][head][element]: the upper and the lower piece; heads beyond: zero.
  void prepare(const Q* q, int64_t heads) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    std::fill(query_, query_ + 2 * kHeads * dim, 0);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < dim; i += kFloatLanes) {  // two chunks
        uint16_t pieces[2][kFloatLanes];
        split(load(d, q + h * dim + i), pieces[0], pieces[1]);
        for (int64_t c = 0; c < 4; ++c) {
          std::memcpy(query_ + ((i / kChunk + c / 2) * 2 + c % 2) * kHeads * kChunk + h * kChunk,
                      pieces[c % 2] + c / 2 * kChunk, kChunk * sizeof(uint16_t));
        }
      }
    }
  }

  /// x as two bf16, each rounded: 17 bits of it.
  static HWY_INLINE void split(FloatVec x, uint16_t* upper, uint16_t* lower) {
    const FloatTag d;
    const hn::RebindToUnsigned<FloatTag> du;
    const hn::Rebind<uint16_t, FloatTag> d16;
    const auto half = hn::Set(du, 0x8000);
    const auto bits = hn::ShiftRight<16>(hn::Add(hn::BitCast(du, x), half));
    const auto rest = hn::Sub(x, hn::BitCast(d, hn::ShiftLeft<16>(bits)));
    hn::StoreU(hn::TruncateTo(d16, bits), d16, upper);
    hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(hn::Add(hn::BitCast(du, rest), half))), d16,
               lower);
  }

  /// scores_[key / 4][head][key % 4] = q.k; beyond `count` -infinity. Asks for as many rows of
  /// `ahead`.
  void score(const bf16* keys, int64_t count, const bf16* ahead) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    for (int64_t first = 0; first < count; first += kKeys) {
      const bf16* rows[kKeys];
#pragma GCC unroll 8
      for (int64_t k = 0; k < kKeys; ++k) {
        rows[k] = keys + std::min(first + k, count - 1) * dim;
      }
      ask_for(ahead + first * dim, std::min(kKeys, count - first) * dim);
      FloatVec sum[kKeys];
#pragma GCC unroll 8
      for (auto& each : sum) {
        each = hn::Zero(d);
      }
      const auto* q = reinterpret_cast<const float*>(query_);
      for (int64_t i = 0; i < dim; i += kChunk, q += 2 * kFloatLanes) {
        const auto upper = in_register(hn::LoadU(d, q));
        const auto lower = in_register(hn::LoadU(d, q + kFloatLanes));
        FloatVec part[kKeys];
#pragma GCC unroll 8
        for (int64_t k = 0; k < kKeys; ++k) {
          part[k] = hn::LoadDup128(d, reinterpret_cast<const float*>(rows[k] + i));
          sum[k] = Bf16Pairs::multiply_add(upper, part[k], sum[k]);
        }
#pragma GCC unroll 8
        for (int64_t k = 0; k < kKeys; ++k) {
          sum[k] = Bf16Pairs::multiply_add(lower, part[k], sum[k]);
        }
      }
      float* to = scores_ + first * kHeads;
      hn::StoreU(sum_blocks(sum[0], sum[1], sum[2], sum[3]), d, to);
      hn::StoreU(sum_blocks(sum[4], sum[5], sum[6], sum[7]), d, to + kFloatLanes);
    }
    if (args_.soft_cap > 0) {
      cap_scores(args_, scores_, (count + 3) / 4 * kFloatLanes);
    }
    for (int64_t key = count; key % 4 != 0; ++key) {
      for (int64_t h = 0; h < kHeads; ++h) {
        scores_[key / 4 * kFloatLanes + h * 4 + key % 4] = -__builtin_inff();
      }
    }
  }

  /// Scores to probabilities against the new maximum, and those to pairs_: [piece][key / 4][head]
  /// [key % 4]. decay: what older sums are scaled with.
  void soften(int64_t count, FloatVec& maximum, FloatVec& total, float (&decay)[kHeads]) {
    const FloatTag d;
    const int64_t vectors = (count + 3) / 4;
    const auto none = hn::Set(d, -__builtin_inff());
    const auto factor = hn::Set(d, args_.scale * 1.44269504f);
    auto now = maximum;
    for (int64_t v = 0; v < vectors; ++v) {
      now = hn::Max(now, hn::LoadU(d, scores_ + v * kFloatLanes));
    }
    now = hn::Max(now, hn::Shuffle1032(now));
    now = hn::Max(now, hn::Shuffle2301(now));
    // A head that has seen only -infinity: any finite origin gives exp(-infinity) = 0.
    const auto origin = hn::IfThenElse(hn::Eq(now, none), hn::Zero(d), now);
    const auto scale = exp2_of_nonpositive(d, hn::Mul(hn::Sub(maximum, origin), factor));
    maximum = now;
    total = hn::Mul(total, scale);
    float scales[kFloatLanes];
    hn::StoreU(scale, d, scales);
    for (int64_t h = 0; h < kHeads; ++h) {
      decay[h] = scales[h * 4];
    }
    for (int64_t v = 0; v < vectors; ++v) {
      const auto score = hn::LoadU(d, scores_ + v * kFloatLanes);
      const auto p = exp2_of_nonpositive(d, hn::Mul(hn::Sub(score, origin), factor));
      total = hn::Add(total, p);
      uint16_t* to = pairs_ + v * kFloatLanes;
      split(p, to, to + kHeads * kAttentionBlock);
    }
  }

  /// sum_[head] = sum_[head] * decay[head] + probabilities . values. Asks for `ahead`, at most for
  /// as many keys as there are values.
  template <int kCount>
  void accumulate(const bf16* values, int64_t count, const float (&decay)[kHeads],
                  KeyBlock<bf16> ahead) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    const hn::RebindToUnsigned<FloatTag> du;
    const hn::Repartition<uint16_t, FloatTag> d16;
    constexpr int kVectors = kPart / static_cast<int>(kFloatLanes);
    for (int64_t begin = 0; begin < count; begin += kRows) {
      const int64_t end = std::min(begin + kRows, count);
      for (int64_t column = 0; column < dim; column += kPart) {
        FloatVec sum[kCount][kVectors];
#pragma GCC unroll 4
        for (int h = 0; h < kCount; ++h) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            sum[h][v] = hn::Mul(hn::LoadU(d, sum_ + h * dim + column + v * kFloatLanes),
                                hn::Set(d, begin == 0 ? decay[h] : 1.0f));
          }
        }
        for (int64_t key = begin; key < end; key += 2) {
          const auto* first = reinterpret_cast<const uint16_t*>(values + key * dim + column);
          // Beyond the last key: the last once more, times zero.
          const uint16_t* second = key + 1 < count ? first + dim : first;
          if (key + 2 <= ahead.count) {  // two rows in as many pieces as there are parts
            ask_for(ahead.rows + key * dim + 2 * column, 2 * kPart);
          }
          FloatVec pair[kVectors];
#pragma GCC unroll 2
          for (int v = 0; v < kVectors; v += 2) {
            const auto a = hn::LoadU(d16, first + v * kFloatLanes);
            const auto b = hn::LoadU(d16, second + v * kFloatLanes);
            pair[v] = hn::BitCast(d, hn::InterleaveLower(d16, a, b));
            pair[v + 1] = hn::BitCast(d, hn::InterleaveUpper(d16, a, b));
          }
          const uint16_t* p = pairs_ + key / 4 * kFloatLanes + key % 4;
#pragma GCC unroll 2
          for (int piece = 0; piece < 2; ++piece) {
#pragma GCC unroll 4
            for (int h = 0; h < kCount; ++h) {
              uint32_t bits;
              std::memcpy(&bits, p + piece * kHeads * kAttentionBlock + h * 4, sizeof bits);
              const auto weights = hn::BitCast(d, hn::Set(du, bits));
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; ++v) {
                sum[h][v] = Bf16Pairs::multiply_add(weights, pair[v], sum[h][v]);
              }
            }
          }
        }
#pragma GCC unroll 4
        for (int h = 0; h < kCount; ++h) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) {
            hn::StoreU(sum[h][v], d, sum_ + h * dim + column + v * kFloatLanes);
          }
        }
      }
    }
  }

  bool finish(int64_t row_index, int64_t head, int64_t heads, int64_t split, FloatVec maximum,
              FloatVec total) {
    const FloatTag d;
    const int64_t dim = args_.head_dim;
    float maxima[kFloatLanes];
    float totals[kFloatLanes];
    hn::StoreU(maximum, d, maxima);
    hn::StoreU(total, d, totals);
    bool finite = true;
    for (int64_t h = 0; h < heads; ++h) {
      const float* t = totals + h * 4;
      const float all = (t[0] + t[1]) + (t[2] + t[3]);
      float* line =
          args_.partials == nullptr
              ? line_
              : args_.partials +
                    ((row_index * args_.query_heads + head + h) * args_.splits + split) * (dim + 2);
      auto check = hn::Set(d, all);
      for (int64_t i = 0; i < dim; i += kFloatLanes) {
        check = hn::Add(check, hn::LoadU(d, sum_ + h * dim + i));
      }
      finite = finite && std::isfinite(hn::GetLane(hn::SumOfLanes(d, check)));
      for (int64_t i = 0; i < dim; i += 4) {  // four columns of a block stay together
        std::memcpy(line + i, sum_ + h * dim + place(i), 4 * sizeof(float));
      }
      if (args_.partials == nullptr) {
        write_head(args_, row_index, head + h, {0, dim}, line,
                   normaliser(args_, head + h, maxima[h * 4] * args_.scale, all));
      } else {
        line[dim] = maxima[h * 4] * args_.scale;
        line[dim + 1] = all;
      }
    }
    return finite;
  }

  /// Where accumulate() puts column i: two rows are interleaved block by block.
  static int64_t place(int64_t i) {
    const int64_t in_vector = i % (2 * kFloatLanes);
    return i - in_vector + in_vector / 4 % 2 * kFloatLanes + in_vector / 8 * 4 + i % 4;
  }

  const AttentionArgs& args_;
  FewAttention<Q, bf16> exact_;  // in f32
  uint16_t* query_;              // bf16
  float* sum_;                   // [kHeads][head_dim], in accumulate()'s order, unnormalised
  float* scores_;                // [kAttentionBlock / 4][kHeads][4]
  uint16_t* pairs_;              // [2][kAttentionBlock / 4][kHeads][4]: bf16
  float* line_;                  // [head_dim]
  size_t bytes_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET == HWY_AVX3

#endif  // per-target include guard
