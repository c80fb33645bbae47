// How operations name their operands: plain pointers with a format and a row stride, in the memory
// of the device that runs them. An operation never allocates.
#pragma once

#include <cstdint>

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

}  // namespace weft
