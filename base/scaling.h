// Scales of numbers that are stored as codes of a small format: number = code * scale.
#pragma once

#include <cstdint>

#include "base/divide.h"

namespace weft {

/// How many numbers share a scale.
enum class Scaling : uint8_t {
  none,    ///< there are none
  tensor,  ///< one for all
  row,     ///< one a row (of activations: a token; of weights: an output channel)
  block,   ///< one for 128 adjacent numbers of a row; of weights [n, k], for 128 x 128
};
inline constexpr int64_t kScaleBlock = 128;

constexpr int64_t scale_blocks(int64_t count) { return ceil_div(count, kScaleBlock); }

/// The scales of weights [n, k] in an fp8 format, f32: [1], [n] or [n / 128, k / 128], rounded up.
struct WeightScales {
  Scaling scaling = Scaling::none;
  const float* data = nullptr;
  int64_t row_stride = 0;  ///< of blocks: from 128 rows' scales to the next ones'

  /// Those of row r: of its first 128 elements, the next, ... `step()` apart.
  const float* of_row(int64_t r) const {
    return scaling == Scaling::block ? data + r / kScaleBlock * row_stride
           : scaling == Scaling::row ? data + r
                                     : data;
  }
  int64_t step() const { return scaling == Scaling::block ? 1 : 0; }
  /// 1 where there are none.
  float at(int64_t r, int64_t element) const {
    return scaling == Scaling::none ? 1 : of_row(r)[element / kScaleBlock * step()];
  }
};

/// How rows of activations are quantised to e4m3fn before they meet weights in that format:
/// code = saturate(x / scale), and what is multiplied is code * scale.
struct Fp8Rounding {
  Scaling scaling = Scaling::none;  ///< none: they are not; tensor: by `scale`; row and block: the
                                    ///< largest |x| of a row, or of each 128, becomes 448
  float scale = 0;
  float largest = 3.4028235e38F;  ///< what is taken for the largest |x| at most
  float least_scale = 0;          ///< the scale at least; where it would be 0, it is 1

  bool operator==(const Fp8Rounding&) const = default;
};

}  // namespace weft
