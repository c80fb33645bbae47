// How few-row products cut their columns into streams of weights, so that who runs ahead of them
// reads what they read first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/range.h"

namespace weft::cpu {

/// A longer row of `a` does not stay in the first-level cache beside the weights: eight weight rows
/// at once then halve the loads of it. Otherwise four read memory faster.
inline constexpr int64_t kManyStreamsBytes = 16 << 10;

/// Weight rows in flight at once when a row of `a` has k elements in f32.
constexpr int stream_count(int64_t k) {
  return k * static_cast<int64_t>(sizeof(float)) > kManyStreamsBytes ? 8 : 4;
}

/// Brings the line-th cache line of each of a tile's streams into the second-level cache.
/// `matrices` matrices of rows of `row_bytes` share the streams. Asks for nothing beyond a stream's
/// end.
inline void prefetch_streams(const void* const* matrices, int count, int64_t row_bytes, int64_t k,
                             Range columns, int64_t line) {
  constexpr int64_t kLine = 64;
  const int parts = stream_count(k) / count;
  const int64_t part = columns.size() / parts;
  if (line * kLine >= part * row_bytes) {
    return;
  }
  for (int m = 0; m < count; ++m) {
    const auto* first = static_cast<const std::byte*>(matrices[m]) + columns.begin * row_bytes;
    for (int p = 0; p < parts; ++p) {
      __builtin_prefetch(first + p * part * row_bytes + line * kLine, 0, 2);
    }
  }
}

}  // namespace weft::cpu
