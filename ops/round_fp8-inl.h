// Rows of activations quantised to e4m3fn and back (Fp8Rounding) before a product with weights in
// that format. Included once per instruction set.
#include <algorithm>
#include <cstdint>
#include <span>

#include "arch/cpu/e4m3-inl.h"
#include "base/divide.h"
#include "base/fp8.h"
#include "base/range.h"
#include "base/scaling.h"
#include "ops/matrix.h"

#if defined(WEFT_OPS_ROUND_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ROUND_FP8_INL_H_
#undef WEFT_OPS_ROUND_FP8_INL_H_
#else
#define WEFT_OPS_ROUND_FP8_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Calls f(T{}) with the storage type T of weights in f32, bf16, f16 or e4m3fn.
template <class F>
HWY_INLINE void with_weights(DType type, F&& f) {
  if (type == DType::e4m3fn) {
    f(e4m3fn{});
  } else {
    with_type(type, f);
  }
}

/// Calls f(first element, elements, whether they fill a vector) for all of [begin, end).
template <class F>
HWY_INLINE void for_vectors(int64_t begin, int64_t end, F&& f) {
  const int64_t lanes = kFloatLanes;
  for (int64_t i = begin; i < end; i += lanes) {
    f(i, std::min(lanes, end - i));
  }
}

template <class T>
HWY_INLINE FloatVec load_some(const T* from, int64_t count) {
  const FloatTag d;
  return count < static_cast<int64_t>(kFloatLanes) ? load_first(d, from, count) : load(d, from);
}

/// The scale of elements that share one; NaNs are passed over.
template <class T>
float scale_of(const Fp8Rounding& rounding, const T* row, int64_t begin, int64_t end) {
  if (rounding.scaling == Scaling::tensor) {
    return rounding.scale;
  }
  auto most = hn::Zero(FloatTag());
  for_vectors(begin, end, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto v = hn::Abs(load_some(row + i, count));
    most = hn::IfThenElse(hn::Gt(v, most), v, most);
  });
  const float largest = std::min(hn::GetLane(hn::MaxOfLanes(FloatTag(), most)), rounding.largest);
  const float scale = std::max(largest / kMax<e4m3fn>, rounding.least_scale);
  return scale > 0 ? scale : 1;
}

/// out[i] = saturate_to<e4m3fn>(row[i] / scale) * scale.
template <class T>
void round_row(const Fp8Rounding& rounding, const T* row, int64_t k, float* out) {
  const FloatTag d;
  const int64_t block = rounding.scaling == Scaling::block ? kScaleBlock : k;
  for (int64_t begin = 0; begin < k; begin += block) {
    const int64_t end = std::min(k, begin + block);
    const float scale = scale_of(rounding, row, begin, end);
    for_vectors(begin, end, [&](int64_t i, int64_t count) HWY_ATTR {
      e4m3fn codes[kFloatLanes];
      store(d, hn::Div(load_some(row + i, count), hn::Set(d, scale)), codes);
      const auto nan = hn::IsNaN(load_some(row + i, count));
      const auto value = hn::Mul(load(d, codes), hn::Set(d, kE4m3Unit * scale));
      const auto result = hn::IfThenElse(nan, load_some(row + i, count), value);
      if (count < static_cast<int64_t>(kFloatLanes)) {
        store_first(d, result, out + i, count);
      } else {
        store(d, result, out + i);
      }
    });
  }
}

/// Scratch that round_rows() takes for its result.
inline int64_t rounded_bytes(const Fp8Rounding& rounding, int64_t rows, int64_t k) {
  constexpr int64_t kLine = 64;
  const int64_t bytes = rows * k * static_cast<int64_t>(sizeof(float));
  return rounding.scaling == Scaling::none ? 0 : round_up(bytes, kLine);
}

/// What a product reads in place of `a`: itself, or its rows rounded at the beginning of `scratch`,
/// which is what is left of it afterwards. Each worker rounds them for itself.
inline ConstMatrix round_rows(const Fp8Rounding& rounding, const ConstMatrix& a, Range rows,
                              int64_t k, std::span<std::byte>& scratch) {
  if (rounding.scaling == Scaling::none) {
    return a;
  }
  auto* out = reinterpret_cast<float*>(scratch.data());
  scratch = scratch.subspan(static_cast<size_t>(rounded_bytes(rounding, rows.size(), k)));
  with_type(a.dtype, [&](auto type) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      round_row(rounding, row<decltype(type)>(a, r), k, out + (r - rows.begin) * k);
    }
  });
  return {out - rows.begin * k, DType::f32, k};
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
