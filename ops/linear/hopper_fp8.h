// Weights in e4m3fn as a resident kernel reads them (see hopper.cuh): codes, four in a word, that
// become bf16 on their way to the registers, exactly, and scales that the sums are multiplied with.
//
// A code's seven bits beside the sign are a bf16's exponent and mantissa, 2^-120 of the number,
// where they stand right below its exponent's three upper bits; subnormals come out right, too. Two
// pairs of codes have a word: those of the first stand where they are wanted, those of the second
// in the bits between, and two shifts bring them there. The code of NaN is 480.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

#include "base/scaling.h"

namespace weft::hopper {

/// 2^120 twice as bf16: what first_pair() and second_pair() are multiplied with.
inline constexpr uint32_t kFp8Units = 0x7b807b80u;

/// Two bf16 of 2^-120 of their numbers, the first in the low half.
constexpr uint32_t first_pair(uint32_t word) { return word & 0x87f087f0u; }
constexpr uint32_t second_pair(uint32_t word) {
  return (word << 4 & 0x80f080f0u) | (word >> 4 & 0x07000700u);
}

/// The two codes of a pair, the first in the low byte.
constexpr uint32_t fp8_codes(uint32_t pair) {
  const auto code = [](uint32_t half) { return (half >> 8 & 0x80) | (half >> 4 & 0x7f); };
  return code(pair) | code(pair >> 16) << 8;
}

/// The word of four codes.
constexpr uint32_t fp8_word(uint32_t first_low, uint32_t first_high, uint32_t second_low,
                            uint32_t second_high) {
  const auto placed = [](uint32_t code) { return (code & 0x80) << 8 | (code & 0x7f) << 4; };
  const auto between = [](uint32_t code) {
    return (code & 0x0f) | (code & 0x80) << 4 | (code & 0x70) << 8;
  };
  return placed(first_low) | placed(first_high) << 16 | between(second_low) |
         between(second_high) << 16;
}

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
