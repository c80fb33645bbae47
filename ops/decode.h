// For the references: numbers of an operand as double, exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/matrix.h"

namespace weft::reference {

/// `count` elements of an array in format `type`: the one at `first`, and every `step`-th after it.
inline std::vector<double> decode(const void* data, DType type, int64_t first, int64_t step,
                                  int64_t count) {
  std::vector<double> result(static_cast<size_t>(count));
  with_any_type(type, [&](auto t) {
    const auto* from = static_cast<const decltype(t)*>(data) + first;
    for (int64_t i = 0; i < count; ++i) {
      result[static_cast<size_t>(i)] = to_float(from[i * step]);
    }
  });
  return result;
}

/// A sum of products and the sum of the products' magnitudes, which its error is measured against.
struct Product {
  double value = 0;
  double magnitude = 0;
};
inline Product product(const double* a, const double* b, int64_t count) {
  Product result;
  for (int64_t i = 0; i < count; ++i) {
    const double term = a[i] * b[i];
    result.value += term;
    result.magnitude += term < 0 ? -term : term;
  }
  return result;
}

}  // namespace weft::reference
