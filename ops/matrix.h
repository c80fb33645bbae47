// How operations name their operands: plain pointers with a format and a row stride, in the memory
// of the device that runs them. An operation never allocates.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/fp8.h"
#include "base/number.h"

namespace weft {

/// A row-major matrix that is read. `stride` counts elements from one row to the next.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;
};

/// A row-major matrix that is written.
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  int64_t stride = 0;
};

/// A vector that is read; null data: absent.
struct ConstVector {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

/// One layer's keys or values: [kv_head][position][head_dim], f32 or bf16. `head_stride` counts
/// elements from one head to the next (capacity in positions times head_dim).
struct KvCache {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::bf16;
  int64_t head_stride = 0;
};

/// Row r of a matrix whose format is T.
template <class T>
const T* row(const ConstMatrix& m, int64_t r) {
  return static_cast<const T*>(m.data) + r * m.stride;
}
template <class T>
T* row(const Matrix& m, int64_t r) {
  return static_cast<T*>(m.data) + r * m.stride;
}

/// Calls f(T{}) with the storage type T that `type` (f32, bf16 or f16) names: kernels are templates
/// over formats.
template <class F>
decltype(auto) with_type(DType type, F&& f) {
  switch (type) {
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      WEFT_CHECK(type == DType::f32);
  }
  return f(float{});
}
/// The same for e4m3fn and e4m3fnuz.
template <class F>
decltype(auto) with_fp8(DType type, F&& f) {
  WEFT_CHECK(is_fp8(type));
  return type == DType::e4m3fn ? f(e4m3fn{}) : f(e4m3fnuz{});
}
/// The same for every format.
template <class F>
decltype(auto) with_any_type(DType type, F&& f) {
  return is_fp8(type) ? with_fp8(type, f) : with_type(type, f);
}

/// Element i of an array in format `type`, exactly. The references read their operands with it.
inline double element(const void* data, DType type, int64_t i) {
  return with_any_type(
      type, [&](auto t) -> double { return to_float(static_cast<const decltype(t)*>(data)[i]); });
}
inline double element(const ConstMatrix& m, int64_t r, int64_t c) {
  return element(m.data, m.dtype, r * m.stride + c);
}

}  // namespace weft
