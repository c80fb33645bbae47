// What the CPU's attention_forward and attention_backward are made of: rows widened to f32 and
// filled up with zeros to whole vectors. Included once per instruction set (hwy/foreach_target.h).
#if defined(WEFT_OPS_SEQUENCE_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_SEQUENCE_ATTENTION_INL_H_
#undef WEFT_OPS_SEQUENCE_ATTENTION_INL_H_
#else
#define WEFT_OPS_SEQUENCE_ATTENTION_INL_H_
#endif

#include "arch/cpu/vector-inl.h"
#include "base/divide.h"
#include "ops/sequence_attention.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Elements of a widened row; no vector of f32 is longer.
constexpr int64_t widened(int64_t elements) { return round_up(elements, int64_t{16}); }
static_assert(16 % kFloatLanes == 0);

/// Columns [column, column + count) of a row of bf16.
inline void widen(const ConstMatrix& m, int64_t r, int64_t column, int64_t count, float* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const bf16* from = row<bf16>(m, r) + column;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(load(d, from + i), d, out + i);
  }
  if (i < count) {
    hn::StoreU(load_first(d, from + i, static_cast<size_t>(count - i)), d, out + i);
    i += lanes;
  }
  for (; i < widened(count); i += lanes) {
    hn::StoreU(hn::Zero(d), d, out + i);
  }
}

/// Of widened rows.
inline float dot(const float* a, const float* b, int64_t size) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kFloatLanes) {
    sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}
/// to += factor * x.
inline void add(float factor, const float* x, int64_t size, float* to) {
  const FloatTag d;
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < size; i += kFloatLanes) {
    hn::StoreU(hn::MulAdd(f, hn::LoadU(d, x + i), hn::LoadU(d, to + i)), d, to + i);
  }
}
/// x <- exp(scale x - shift).
inline void exponentials(float scale, float shift, int64_t size, float* x) {
  const FloatTag d;
  const auto f = hn::Set(d, scale);
  const auto s = hn::Set(d, shift);
  for (int64_t i = 0; i < size; i += kFloatLanes) {
    hn::StoreU(exp(d, hn::MulSub(f, hn::LoadU(d, x + i), s)), d, x + i);
  }
}
/// factor * x to `count` elements of a row in its format.
inline void put(const float* x, float factor, const Matrix& to, int64_t r, int64_t column,
                int64_t count) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto f = hn::Set(d, factor);
  const auto put_as = [&](auto* out) HWY_ATTR {
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      store(d, hn::Mul(f, hn::LoadU(d, x + i)), out + i);
    }
    if (i < count) {
      store_first(d, hn::Mul(f, hn::LoadU(d, x + i)), out + i, static_cast<size_t>(count - i));
    }
  };
  if (to.dtype == DType::bf16) {
    put_as(row<bf16>(to, r) + column);
  } else {
    put_as(row<float>(to, r) + column);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
