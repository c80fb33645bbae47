// How few-row products cut their columns into streams of weights, so that who runs ahead of them
// reads what they read first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/range.h"

namespace weft::cpu {

inline constexpr int64_t kStreamRows = 8;  ///< more rows of `a` go to the blocked product

/// Weight rows in flight at once when `rows` rows of `a` have k elements in f32. Four read memory
/// as fast as any, two as well, and while they run through the first-level cache (32 KiB) a row of
/// `a` stays in it: beside four rows of bf16 up to 8 KiB of it, beside two 12 KiB. Longer ones come
/// from the second-level cache each time: six weight rows at once make that seldom enough, and more
/// read memory more slowly. Several rows of `a` need the sums of four for their arithmetic.
constexpr int stream_count(int64_t k, int64_t rows) {
  const int64_t bytes = k * static_cast<int64_t>(sizeof(float));
  return bytes > 12 << 10 ? 6 : bytes > 8 << 10 && rows == 1 ? 2 : 4;
}

/// Brings the line-th cache line of each of a tile's streams for one row of `a` into the
/// second-level cache. `matrices` matrices of rows of `row_bytes` share the streams. Asks for
/// nothing beyond a stream's end.
inline void prefetch_streams(const void* const* matrices, int count, int64_t row_bytes, int64_t k,
                             Range columns, int64_t line) {
  constexpr int64_t kLine = 64;
  const int parts = stream_count(k, 1) / count;
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
