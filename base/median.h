// The middle and the mean of what was measured several times.
#pragma once

#include <algorithm>
#include <numeric>
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

/// The sum shared out equally; 0 of none.
inline double mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

}  // namespace weft
