// Writes rows of numbers quantised (ops/scales.h) on the CPU. Included once per instruction set.
#include <algorithm>
#include <cstdint>

#include "arch/cpu/fp8-inl.h"
#include "ops/scales.h"

#if defined(WEFT_OPS_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_QUANTISE_INL_H_
#undef WEFT_OPS_QUANTISE_INL_H_
#else
#define WEFT_OPS_QUANTISE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Calls f(first column, columns) for each block of a row.
template <class F>
HWY_INLINE void for_blocks(int64_t columns, F&& f) {
  for (int64_t first = 0; first < columns; first += kScaleBlock) {
    f(first, std::min(kScaleBlock, columns - first));
  }
}

/// The largest magnitude of `count` numbers and `least`; NaNs are passed over.
inline float largest(const float* values, int64_t count, float least) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  auto most = hn::Set(d, least);
  for (int64_t c = 0; c < count; c += lanes) {
    const auto v = hn::Abs(count - c < lanes ? load_first(d, values + c, count - c)
                                             : hn::LoadU(d, values + c));
    most = hn::IfThenElse(hn::Gt(v, most), v, most);
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

template <class T>
void write_scaled(const float* values, int64_t count, float factor, T* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto f = hn::Set(d, factor);
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    store(d, hn::Mul(hn::LoadU(d, values + c), f), out + c);
  }
  if (c < count) {
    store_first(d, hn::Mul(load_first(d, values + c, count - c), f), out + c, count - c);
  }
}

/// Row r of `y`, which `compute(first, count, to)` gives kScaleBlock columns at a time, twice where
/// the whole row is needed for its scale.
template <class Compute>
void write_quantised(const Quantised& y, int64_t r, int64_t columns, Compute&& compute) {
  float values[kScaleBlock];
  if (y.scaling == Scaling::none) {
    with_type(y.out.dtype, [&](auto t) {
      for_blocks(columns, [&](int64_t first, int64_t count) {
        compute(first, count, values);
        write_scaled(values, count, 1.0f, row<decltype(t)>(y.out, r) + first);
      });
    });
    return;
  }
  with_fp8(y.out.dtype, [&](auto t) {
    using F = decltype(t);
    float scale = y.scaling == Scaling::tensor ? *y.scales.data : 0;
    if (y.scaling == Scaling::row) {
      float most = kLeastAmax;
      for_blocks(columns, [&](int64_t first, int64_t count) {
        compute(first, count, values);
        most = largest(values, count, most);
      });
      scale = most / kMax<F>;
      y.scales.data[r * y.scales.row_stride] = scale;
    }
    for_blocks(columns, [&](int64_t first, int64_t count) {
      compute(first, count, values);
      if (y.scaling == Scaling::block) {
        scale = largest(values, count, kLeastAmax) / kMax<F>;
        y.scales.data[r * y.scales.row_stride + first / kScaleBlock * y.scales.block_stride] =
            scale;
      }
      write_scaled(values, count, 1 / scale, row<F>(y.out, r) + first);
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
