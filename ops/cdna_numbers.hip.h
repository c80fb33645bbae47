// Rows of numbers of any format, read and written as f32, eight at a time.
#pragma once

#include "arch/cdna/memory.hip.h"
#include "arch/cdna/round.hip.h"
#include "ops/cdna_rows.h"

namespace weft::cdna {

using f32_t = float;  ///< as kernels' names have it

/// A row of numbers of type T, eight at a time in f32.
template <class T>
class Numbers {
 public:
  __device__ __attribute__((always_inline)) Numbers(const void* row, int columns)
      : buffer_(row, columns * sizeof(T)) {}

  __device__ __attribute__((always_inline)) f32x8 load(int chunk) const {
    const uint32_t at = chunk * kChunk * sizeof(T);
    if constexpr (sizeof(T) == 4) {
      const auto low = __builtin_bit_cast(f32x4, buffer_.load(at));
      const auto high = __builtin_bit_cast(f32x4, buffer_.load(at + 16));
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    } else {
      return __builtin_convertvector(__builtin_bit_cast(Vector<T, kChunk>, buffer_.load(at)),
                                     f32x8);
    }
  }
  __device__ __attribute__((always_inline)) void store(int chunk, f32x8 v) const {
    const uint32_t at = chunk * kChunk * sizeof(T);
    if constexpr (sizeof(T) == 4) {
      buffer_.store(__builtin_shufflevector(v, v, 0, 1, 2, 3), at);
      buffer_.store(__builtin_shufflevector(v, v, 4, 5, 6, 7), at + 16);
    } else {
      buffer_.store(round_to<T>(v), at);
    }
  }

 private:
  Buffer buffer_;
};

}  // namespace weft::cdna
