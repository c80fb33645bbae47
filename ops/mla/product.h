// Rows of the heads' matrix as the weights of a product on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "ops/linear/op.h"
#include "ops/mla/op.h"

namespace weft {

/// With rows [first, first + n) of w; what it multiplies and its result are the caller's to set.
/// Scales of blocks want first to be a multiple of 128.
inline LinearArgs rows_product(const LatentHeads& of, int64_t first, int64_t n) {
  LinearArgs product;
  product.w = of.w;
  product.w.data = static_cast<const std::byte*>(of.w.data) +
                   first * of.w.stride * static_cast<int64_t>(size_of(of.w.dtype));
  product.scales = of.scales;
  if (of.scales.scaling != Scaling::none) {
    WEFT_CHECK(of.scales.scaling != Scaling::block || first % kScaleBlock == 0);
    product.scales.data = of.scales.of_row(first);
  }
  product.n = n;
  product.k = of.rank;
  return product;
}

}  // namespace weft
