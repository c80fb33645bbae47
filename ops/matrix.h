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

/// Positions of a page of a KV cache that is kept in pages.
inline constexpr int64_t kKvPage = 64;

/// One layer's keys or values, f32 or bf16: [kv_head][position][head_dim], one sequence's, or in
/// pages, [page][kv_head][kKvPage][head_dim], those of any sequences. `head_stride` counts elements
/// from one head to the next: capacity in positions, or kKvPage, times head_dim.
struct KvCache {
  void* keys = nullptr;
  void* values = nullptr;
  DType dtype = DType::bf16;
  int64_t head_stride = 0;
  int64_t page_stride = 0;  ///< elements from one page to the next
  /// In pages (cpu only): tables[row][i] is the page of positions [i * kKvPage, (i + 1) * kKvPage)
  /// of the sequence that a step's row belongs to. Null: not in pages.
  const int32_t* const* tables = nullptr;

  /// Where a head's `position` is for a row; those up to the next multiple of kKvPage follow it.
  int64_t place(int64_t row, int64_t head, int64_t position, int64_t head_dim) const {
    if (tables == nullptr) {
      return head * head_stride + position * head_dim;
    }
    return tables[row][position / kKvPage] * page_stride + head * head_stride +
           position % kKvPage * head_dim;
  }
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
