#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/matrix.h"

namespace weft {

/// A matrix, read or written, without its first rows.
template <class M>
M below(M matrix, int64_t rows) {
  using Byte = std::conditional_t<std::is_same_v<M, Matrix>, std::byte, const std::byte>;
  matrix.data = static_cast<Byte*>(matrix.data) +
                rows * matrix.stride * static_cast<int64_t>(size_of(matrix.dtype));
  return matrix;
}

}  // namespace weft
