// The middle of what was measured several times.
#pragma once

#include <algorithm>
#include <vector>

namespace weft {

/// The middle value, or the mean of the middle two; 0 of none.
inline double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace weft
