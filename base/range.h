// A half-open range of rows, columns or heads.
#pragma once

#include <cstdint>

namespace weft {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;  ///< one past the last

  constexpr int64_t size() const { return end > begin ? end - begin : 0; }
  constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

}  // namespace weft
