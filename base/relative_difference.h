// How far one vector is from another.
#pragma once

#include <cmath>
#include <limits>
#include <span>

namespace weft {

/// The norm of the difference over that of `expected`. NaN, which passes no comparison, where
/// either has one or their sizes differ.
inline double relative_difference(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i];
    const double d = static_cast<double>(got[i]) - e;
    difference += d * d;
    norm += e * e;
  }
  return std::sqrt(difference / norm);
}

}  // namespace weft
