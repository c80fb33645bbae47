// The scales of quantised operands: number = code * scale.
#pragma once

#include <cstdint>

#include "base/scaling.h"
#include "ops/matrix.h"

namespace weft {

/// Scales that are read, f32, of any sign. The scale of row r (of weights with Scaling::block: of
/// rows 128 r to 128 r + 127) and block b along the row is data[r * row_stride + b * block_stride];
/// a stride that Scaling has no use for is not read.
struct ConstScales {
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t block_stride = 0;
};

/// Scales that are written; with Scaling::tensor they are read (a static scale, positive).
struct Scales {
  float* data = nullptr;
  int64_t row_stride = 0;
  int64_t block_stride = 0;
};

/// Where and how an operation on rows writes its result v[row, column].
///  - out in bf16 or f16: scaling is none; v is rounded.
///  - out in an fp8 format F: out = saturate_to<F>(v / scale), the scale being read (tensor) or
///    computed and written (row, block): scale = max(largest |v|, 1e-10) / kMax<F> over the row, or
///    over each 128 columns of it (the last may be shorter). NaNs are passed over in the search for
///    the largest and are NaN in out; an infinity makes the scale infinite, itself NaN and the rest
///    0.
struct Quantised {
  Matrix out;  ///< [rows, columns]
  Scaling scaling = Scaling::none;
  Scales scales;
};
inline constexpr float kLeastAmax = 1e-10f;

}  // namespace weft
