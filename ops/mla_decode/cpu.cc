// mla_decode on the CPU: a block of keys is widened to f32 once for all heads and query tokens of
// its sequence; each row then scores it, moves its softmax on and adds its values.
#include "ops/mla_decode/op.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/mla_decode/turn.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/mla_decode/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/e4m3-inl.h"
#include "arch/cpu/vector-inl.h"

#ifndef WEFT_OPS_MLA_DECODE_CPU_
#define WEFT_OPS_MLA_DECODE_CPU_
namespace weft::cpu {
inline constexpr int64_t kLatentBlock = 32;  ///< keys at a time
inline constexpr int64_t kLatentAtOnce = 4;  ///< keys whose products run beside each other

/// What a call keeps, in floats: a block of keys, its scores, and of each row the query, the sums
/// and the softmax's maximum and sum.
struct LatentScratch {
  float* keys;
  float* scores;
  float* rows;
  static constexpr int64_t kRow = kLatentRow + kLatentRank + 2;
  static constexpr int64_t kShared = kLatentBlock * (kLatentRow + 1);
  explicit LatentScratch(std::byte* memory)
      : keys(reinterpret_cast<float*>(memory)),
        scores(keys + kLatentBlock * kLatentRow),
        rows(keys + kShared) {}
};
}  // namespace weft::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

inline void widen_latent(const LatentCache& cache, int64_t row, float* to) {
  const FloatTag d;
  const auto* bytes = static_cast<const std::byte*>(cache.rows) + row * cache.row_bytes();
  const auto* turned = reinterpret_cast<const bf16*>(bytes);
  int64_t at = 0;
  if (cache.dtype == DType::e4m3fn) {
    const auto* codes = reinterpret_cast<const e4m3fn*>(bytes);
    for (; at < kLatentRank; at += kFloatLanes) {
      float scale;
      std::memcpy(&scale, bytes + kLatentRank + 4 * (at / 128), sizeof(scale));
      bf16 rounded[kFloatLanes];
      // The code of NaN is a number to load().
      const auto code = hn::Mul(load(d, codes + at), hn::Set(d, kE4m3Unit));
      const auto nan = hn::Eq(hn::Abs(code), hn::Set(d, 480.0f));
      const auto value =
          hn::IfThenElse(nan, hn::Set(d, std::numeric_limits<float>::quiet_NaN()), code);
      store(d, hn::Mul(value, hn::Set(d, scale)), rounded);
      hn::StoreU(load(d, rounded), d, to + at);
    }
    turned = reinterpret_cast<const bf16*>(bytes + kLatentRank + 4 * kLatentScales) - kLatentRank;
  }
  for (; at < kLatentRow; at += kFloatLanes) {
    hn::StoreU(load(d, turned + at), d, to + at);
  }
}

/// A row over keys [0, count) of the block: `state` is its query, sums, maximum and sum of
/// exponentials.
inline void attend_block(const float* keys, int64_t count, float scale, float* scores,
                         float* state) {
  const FloatTag d;
  constexpr int64_t kLanes = kFloatLanes;
  constexpr int64_t kAtOnce = cpu::kLatentAtOnce;
  const float* q = state;
  float* sums = state + kLatentRow;
  float& maximum = state[kLatentRow + kLatentRank];
  float& total = state[kLatentRow + kLatentRank + 1];
  // Beyond `count` the last key stands in, whose result is not used.
  const auto key = [&](int64_t i) { return keys + std::min(i, count - 1) * kLatentRow; };
  float highest = maximum;
  for (int64_t first = 0; first < count; first += kAtOnce) {
    FloatVec sum[kAtOnce];
    const float* k[kAtOnce];
    for (int64_t i = 0; i < kAtOnce; ++i) {
      sum[i] = hn::Zero(d);
      k[i] = key(first + i);
    }
    for (int64_t at = 0; at < kLatentRow; at += kLanes) {
      const auto x = hn::LoadU(d, q + at);
      for (int64_t i = 0; i < kAtOnce; ++i) {
        sum[i] = hn::MulAdd(x, hn::LoadU(d, k[i] + at), sum[i]);
      }
    }
    for (int64_t i = 0; i < kAtOnce && first + i < count; ++i) {
      scores[first + i] = hn::GetLane(hn::SumOfLanes(d, sum[i])) * scale;
      highest = std::max(highest, scores[first + i]);
    }
  }
  // (All scores minus infinity so far: exp(0) of none.)
  const float shift = highest == -std::numeric_limits<float>::infinity() ? 0 : highest;
  const float factor = std::exp(maximum - shift);
  maximum = highest;
  total *= factor;
  for (int64_t i = 0; i < count; ++i) {
    scores[i] = std::exp(scores[i] - shift);
    total += scores[i];
  }
  for (int64_t first = 0; first < count; first += kAtOnce) {
    const float* k[kAtOnce];
    FloatVec weight[kAtOnce];
    const int64_t some = std::min(kAtOnce, count - first);
    for (int64_t i = 0; i < kAtOnce; ++i) {
      k[i] = key(first + i);
      weight[i] = hn::Set(d, i < some ? scores[first + i] : 0.0f);
    }
    const auto rescale = hn::Set(d, first == 0 ? factor : 1.0f);
    for (int64_t at = 0; at < kLatentRank; at += kLanes) {
      auto sum = hn::Mul(hn::LoadU(d, sums + at), rescale);
      for (int64_t i = 0; i < some; ++i) {
        sum = hn::MulAdd(weight[i], hn::LoadU(d, k[i] + at), sum);
      }
      hn::StoreU(sum, d, sums + at);
    }
  }
}

void attend_sequence(const MlaDecodeArgs& args, int64_t sequence, Range heads,
                     const cpu::LatentScratch& scratch) {
  const FloatTag d;
  constexpr int64_t kState = cpu::LatentScratch::kRow;
  const int64_t count = heads.size();
  const auto state = [&](int64_t token, int64_t h) {
    return scratch.rows + (token * count + h) * kState;
  };
  for (int64_t t = 0; t < args.tokens; ++t) {
    for (int64_t h = 0; h < count; ++h) {
      float* to = state(t, h);
      const auto* q =
          row<bf16>(args.q, sequence * args.tokens + t) + (heads.begin + h) * kLatentRow;
      for (int64_t i = 0; i < kLatentRow; ++i) {
        to[i] = to_float(q[i]);
      }
      std::fill(to + kLatentRow, to + kState, 0.0f);
      to[kLatentRow + kLatentRank] = -std::numeric_limits<float>::infinity();
    }
  }
  const int64_t length = args.length(sequence);
  for (int64_t first = 0; first < length; first += cpu::kLatentBlock) {
    const int64_t end = std::min(first + cpu::kLatentBlock, length);
    for (int64_t i = first; i < end; ++i) {
      float* const key = scratch.keys + (i - first) * kLatentRow;
      widen_latent(args.cache, args.place(sequence, i), key);
      if (args.cache.angles != nullptr) {
        cpu::turn_halves(args.cache.angles, i, key + kLatentRank);
      }
    }
    for (int64_t t = 0; t < args.tokens; ++t) {
      const int64_t seen = std::min(latent_keys(length, args.tokens, t), end) - first;
      for (int64_t h = 0; seen > 0 && h < count; ++h) {
        attend_block(scratch.keys, seen, args.scale, scratch.scores, state(t, h));
      }
    }
  }
  for (int64_t t = 0; t < args.tokens; ++t) {
    const int64_t r = sequence * args.tokens + t;
    for (int64_t h = 0; h < count; ++h) {
      const float* from = state(t, h) + kLatentRow;
      const float maximum = from[kLatentRank];
      const float total = from[kLatentRank + 1];
      const bool none = latent_keys(length, args.tokens, t) == 0;
      if (args.sums != nullptr) {
        args.sums[r * args.heads + heads.begin + h] =
            none         ? -std::numeric_limits<float>::infinity()
            : total == 0 ? std::numeric_limits<float>::quiet_NaN()  // as the row: 0 / 0
                         : maximum + std::log(total);
      }
      const auto factor = hn::Set(d, none ? 0.0f : 1 / total);
      const int64_t at = (heads.begin + h) * kLatentRank;
      for (int64_t i = 0; i < kLatentRank; i += kFloatLanes) {
        const auto x = hn::Mul(hn::LoadU(d, from + i), factor);
        if (args.out.dtype == DType::bf16) {
          store(d, x, row<bf16>(args.out, r) + at + i);
        } else {
          store(d, x, row<float>(args.out, r) + at + i);
        }
      }
    }
  }
}

void attend_latent(const MlaDecodeArgs& args, Range sequences, Range heads,
                   const cpu::LatentScratch& scratch) {
  for (int64_t i = sequences.begin; i < sequences.end; ++i) {
    attend_sequence(args, i, heads, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void mla_decode(const MlaDecodeArgs& args, Range sequences, Range heads,
                std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(attend_latent)(args, sequences, heads, LatentScratch(scratch.data()));
}

size_t mla_decode_scratch_bytes(const MlaDecodeArgs& args) {
  return static_cast<size_t>(LatentScratch::kShared + args.rows() * LatentScratch::kRow) *
         sizeof(float);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE
