// attention_decode on the CPU: a block of a KV head's keys and values is widened to f32 once for
// all query heads and tokens that attend to it.
#include "ops/attention_decode/op.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_decode/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

#ifndef WEFT_OPS_ATTENTION_DECODE_CPU_
#define WEFT_OPS_ATTENTION_DECODE_CPU_
namespace weft::cpu {

/// What a call keeps, in floats: rows are padded to whole vectors of any instruction set.
struct DecodeScratch {
  static constexpr int64_t kBlock = 32;  ///< keys at a time
  static constexpr int64_t kRow = kDecodeDim;

  float* keys;
  float* values;
  float* scores;
  float* rows;  ///< of each the query, the sums, the highest score, the sum, the distance

  static constexpr int64_t kState = 2 * kRow + 3;
  static constexpr int64_t kShared = kBlock * (2 * kRow + 1);

  explicit DecodeScratch(std::byte* memory)
      : keys(reinterpret_cast<float*>(memory)),
        values(keys + kBlock * kRow),
        scores(values + kBlock * kRow),
        rows(scores + kBlock) {}
};

}  // namespace weft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

using cpu::DecodeScratch;

/// `count` elements and zeros up to a whole row.
inline void widen_row(const bf16* from, int64_t count, float* to) {
  const FloatTag d;
  constexpr int64_t kLanes = kFloatLanes;
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto x = count - i >= kLanes ? load(d, from + i)
                                       : load_first(d, from + i, static_cast<size_t>(count - i));
    hn::StoreU(x, d, to + i);
  }
}

/// A row over keys `seen` of the block.
inline void attend_keys(const AttentionDecodeArgs& args, const DecodeScratch& scratch, Range seen,
                        float* state) {
  const FloatTag d;
  constexpr int64_t kLanes = kFloatLanes;
  const int64_t dim = args.head_dim;
  const float* q = state;
  float* sums = state + DecodeScratch::kRow;
  float& highest = state[2 * DecodeScratch::kRow];
  float& total = state[2 * DecodeScratch::kRow + 1];
  float& distance = state[2 * DecodeScratch::kRow + 2];
  float next = highest;
  for (int64_t key = seen.begin; key < seen.end; ++key) {
    const float* k = scratch.keys + key * DecodeScratch::kRow;
    FloatVec sum[2] = {hn::Zero(d), hn::Zero(d)};
    for (int64_t i = 0; i < dim; i += 2 * kLanes) {
      sum[0] = hn::MulAdd(hn::LoadU(d, q + i), hn::LoadU(d, k + i), sum[0]);
      if (i + kLanes < dim) {
        sum[1] = hn::MulAdd(hn::LoadU(d, q + i + kLanes), hn::LoadU(d, k + i + kLanes), sum[1]);
      }
    }
    float score = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum[0], sum[1]))) * args.scale;
    if (args.soft_cap > 0) {
      score = args.soft_cap * std::tanh(score / args.soft_cap);
    }
    scratch.scores[key] = score;
    next = std::max(next, score);
    distance = std::max(distance, std::fabs(score - args.unified_maximum));
  }
  const float shift = next == -std::numeric_limits<float>::infinity() ? 0 : next;
  const float factor = std::exp(highest - shift);
  highest = next;
  total *= factor;
  for (int64_t i = 0; i < dim; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, sums + i), hn::Set(d, factor)), d, sums + i);
  }
  for (int64_t key = seen.begin; key < seen.end; ++key) {
    const float weight = std::exp(scratch.scores[key] - shift);
    total += weight;
    const float* v = scratch.values + key * DecodeScratch::kRow;
    for (int64_t i = 0; i < dim; i += kLanes) {
      hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, v + i), hn::LoadU(d, sums + i)), d,
                 sums + i);
    }
  }
}

inline void store_row(const AttentionDecodeArgs& args, int64_t r, int64_t head, bool none,
                      const float* state) {
  const FloatTag d;
  constexpr int64_t kLanes = kFloatLanes;
  const float* sums = state + DecodeScratch::kRow;
  const float highest = state[2 * DecodeScratch::kRow];
  float factor = none ? 0 : 1 / state[2 * DecodeScratch::kRow + 1];
  if (!none && args.sinks.data != nullptr) {
    const auto sink = static_cast<float>(element(args.sinks.data, args.sinks.dtype, head));
    const float peak = std::max(highest, sink);
    const float keep = std::exp(highest - peak);
    factor = keep / (state[2 * DecodeScratch::kRow + 1] * keep + std::exp(sink - peak));
  }
  const int64_t at = head * args.head_dim;
  with_type(args.out.dtype == DType::bf16 ? DType::bf16 : DType::f32, [&](auto type) {
    using T = decltype(type);
    if constexpr (!std::is_same_v<T, f16>) {
      T* out = row<T>(args.out, r) + at;
      for (int64_t i = 0; i < args.head_dim; i += kLanes) {
        const auto x = hn::Mul(hn::LoadU(d, sums + i), hn::Set(d, factor));
        const int64_t left = args.head_dim - i;
        if (left >= kLanes) {
          store(d, x, out + i);
        } else {
          store_first(d, x, out + i, static_cast<size_t>(left));
        }
      }
    }
  });
  if (args.distances != nullptr) {
    args.distances[r * args.query_heads + head] = state[2 * DecodeScratch::kRow + 2];
  }
}

void attend_head(const AttentionDecodeArgs& args, int64_t sequence, int64_t kv_head,
                 const DecodeScratch& scratch) {
  const int64_t group = args.query_heads / args.kv_heads;
  const auto state = [&](int64_t token, int64_t h) {
    return scratch.rows + (token * group + h) * DecodeScratch::kState;
  };
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t h = 0; h < group; ++h) {
      float* to = state(t, h);
      std::fill(to, to + DecodeScratch::kState, 0.0f);
      to[2 * DecodeScratch::kRow] = -std::numeric_limits<float>::infinity();
      widen_row(
          row<bf16>(args.q, sequence * args.tokens + t) + (kv_head * group + h) * args.head_dim,
          args.head_dim, to);
    }
  }
  const int64_t length = args.lengths[sequence];
  const auto* keys = static_cast<const bf16*>(args.cache.keys);
  const auto* values = static_cast<const bf16*>(args.cache.values);
  constexpr int64_t kBlock = DecodeScratch::kBlock;
  for (int64_t first = decode_keys(args, length, 0).begin / kBlock * kBlock; first < length;
       first += kBlock) {
    const int64_t end = std::min(first + kBlock, length);
    for (int64_t i = first; i < end; ++i) {
      const int64_t at = args.cache.place(sequence, i, kv_head, args.kv_heads, args.head_dim);
      widen_row(keys + at, args.head_dim, scratch.keys + (i - first) * DecodeScratch::kRow);
      widen_row(values + at, args.head_dim, scratch.values + (i - first) * DecodeScratch::kRow);
    }
    for (int64_t t = 0; t < args.tokens; ++t) {
      const Range all = decode_keys(args, length, t);
      const Range seen{std::max(all.begin, first) - first, std::min(all.end, end) - first};
      for (int64_t h = 0; seen.begin < seen.end && h < group; ++h) {
        attend_keys(args, scratch, seen, state(t, h));
      }
    }
  }
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t h = 0; h < group; ++h) {
      store_row(args, sequence * args.tokens + t, kv_head * group + h,
                decode_keys(args, length, t).empty(), state(t, h));
    }
  }
}

void attend_heads(const AttentionDecodeArgs& args, Range sequences, Range kv_heads,
                  const DecodeScratch& scratch) {
  for (int64_t i = sequences.begin; i < sequences.end; ++i) {
    for (int64_t h = kv_heads.begin; h < kv_heads.end; ++h) {
      attend_head(args, i, h, scratch);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void attention_decode(const AttentionDecodeArgs& args, Range sequences, Range kv_heads,
                      std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(attend_heads)(args, sequences, kv_heads, DecodeScratch(scratch.data()));
}

size_t attention_decode_scratch_bytes(const AttentionDecodeArgs& args) {
  const int64_t rows = args.query_heads / args.kv_heads * args.tokens;
  return static_cast<size_t>(DecodeScratch::kShared + rows * DecodeScratch::kState) * sizeof(float);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
