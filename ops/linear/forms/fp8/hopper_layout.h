// Weights in e4m3fn as a resident kernel reads them (see ops/linear/hopper.cuh): codes, four in a
// word (words.h), that become bf16 on their way to the registers, exactly, and scales that the sums
// are multiplied with.
//
// A slice begins with the scales of its rows of A, one for each 128 of k (fp8_scale_place()), as
// f32. Then the groups, 512 bytes each: 16 bytes a lane, a word the codes of two registers. The
// sums of each half of such a slice are scaled before they are added to the unit's. Units of which
// some are folded have one scale a row: weights that are scaled in blocks of 128 of k are not
// folded.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

#include "base/scaling.h"
#include "ops/linear/forms/fp8/words.h"
#include "ops/linear/forms/hopper_slice.h"

namespace weft::hopper {

using fp8_words::first_pair;
using fp8_words::fp8_codes;
using fp8_words::fp8_word;
using fp8_words::second_pair;

inline constexpr int kFp8GroupBytes = kUnitColumns * kGroupK;
inline constexpr int kFp8SliceBytes = kSliceHeaderBytes + kSliceGroups * kFp8GroupBytes;
inline constexpr int kFp8PageSlices = 4;

/// The form's tag, and its share of the table of forms (hopper_forms.h).
struct Fp8Form {
  static constexpr int kSliceBytes = kFp8SliceBytes;
  static constexpr int kSlicesOfPage = kFp8PageSlices;
};

/// 2^120 twice as bf16: what first_pair() and second_pair() are multiplied with.
inline constexpr uint32_t kFp8Units = 0x7b807b80u;

/// Where a slice's header has the scale of a row of the operand A for each half of the slice's k,
/// in f32: lane (g, t) reads one of those that its rows, g and g + 8, have.
constexpr int fp8_scale_place(int row, int half) { return row % 8 * 4 + row / 8 * 2 + half; }

/// Which scale a weight has: of row r and block b of 128 elements of k, index r / rows * row_stride
/// + b * block_stride.
struct ScaleGrid {
  int32_t rows = 1;  ///< of the weight that share one
  int32_t row_stride = 0;
  int32_t block_stride = 0;

  constexpr int64_t index(int64_t row, int64_t block) const {
    return row / rows * row_stride + block * block_stride;
  }
};
constexpr ScaleGrid grid_of(const WeightScales& scales) {
  switch (scales.scaling) {
    case Scaling::block:
      return {kScaleBlock, static_cast<int32_t>(scales.row_stride), 1};
    case Scaling::row:
      return {1, 1, 0};
    default:
      return {};
  }
}

}  // namespace weft::hopper
