// Weights in MXFP4 as a resident kernel reads them (see ops/linear/hopper.cuh): words of codes, and
// the scale of each row's 32 of k.
//
// A slice begins with the scales of its rows of A, one for each group, in e8m0. Then the groups,
// 256 bytes each: 8 bytes a lane, a word the eight codes of one row (mx_stream_word()). A unit is
// folded once at most.
//
// A code's three bits beside the sign are the lowest two of an f16's exponent and the first of its
// mantissa: where f16 has them, with zeros else, they are 2^-14 of the number, the subnormal one
// too. So codes become f16 without arithmetic, and what they multiply is f16: a row as two of them
// (the second 2^11 times what the first lacks) and a power of two for each kMxRowBlock elements.
// Sums of a group are scaled in f32.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

#include "ops/linear/forms/hopper_slice.h"

namespace weft::hopper {

inline constexpr int kMxGroupBytes = kUnitColumns * kGroupK / 2;
inline constexpr int kMxSliceBytes = kSliceHeaderBytes + kSliceGroups * kMxGroupBytes;
inline constexpr int kMxPageSlices = 8;

/// The form's tag, and its share of the table of forms (hopper_forms.h).
struct MxForm {
  static constexpr int kSliceBytes = kMxSliceBytes;
  static constexpr int kSlicesOfPage = kMxPageSlices;
};

/// Of a word: two of its codes as f16, the `pair`-th in the order of k. Shifts are written as
/// multiplications, which another pipe does than the bitwise operations beside them.
constexpr uint32_t mx_pair(uint32_t word, int pair) {
  const uint32_t moved = pair == 0   ? word
                         : pair == 1 ? word * 8
                         : pair == 2 ? (word & 0x40384038u) * 0x42
                                     : (word & 0x20072007u) * 0x204;
  return moved & 0x8e008e00u;
}
/// Where a word has a code. Each half has one of each pair, the first pair's where f16 has it, the
/// second's three bits lower. Those of the others do not all fit in anywhere like that: number and
/// sign need a shift each, and the sum of both shifts has nothing else where f16 has them.
struct MxPlace {
  int number;  ///< of the three bits beside the sign
  int sign;
};
constexpr MxPlace mx_place(int code) {
  constexpr MxPlace kOfPairs[4] = {{9, 15}, {6, 12}, {3, 14}, {0, 13}};
  const MxPlace of_half = kOfPairs[code / 2];
  const int half = code % 2 * 16;
  return {of_half.number + half, of_half.sign + half};
}
/// A word of eight codes (e2m1), the first in the low bits, and back.
constexpr uint32_t mx_stream_word(uint32_t codes) {
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = codes >> (4 * i);
    word |= (code & 7) << mx_place(i).number | (code >> 3 & 1) << mx_place(i).sign;
  }
  return word;
}
constexpr uint32_t mx_stream_codes(uint32_t word) {
  uint32_t codes = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = (word >> mx_place(i).number & 7) | (word >> mx_place(i).sign & 1) << 3;
    codes |= code << (4 * i);
  }
  return codes;
}

/// Elements of a row that share a power of two: with fewer, half of a folded slice would have two.
inline constexpr int kMxRowBlock = 256;
inline constexpr int kMostMxFold = 1;
/// Of the numbers of a row's block, of which the largest has this exponent: what they are
/// multiplied with to be f16, and what the sums are, with the 2^14 of the codes. Both as bits of
/// f32.
constexpr uint32_t mx_row_factor(uint32_t exponent) { return (268 - exponent) << 23; }
constexpr uint32_t mx_row_unit(uint32_t exponent) { return exponent << 23; }
inline constexpr uint32_t kLeastMxExponent = 27;  ///< smaller ones count as this
/// How much the second f16 of an element is larger than what it stands for.
inline constexpr float kMxSecond = 2048;

/// Where a slice's header has the scale, as e8m0, of a row of the operand A in a group.
constexpr int mx_scale_place(int row, int group) { return row * 8 + group; }
/// A scale of 2^-127, which f32 has among its subnormal numbers alone, is 2^-126 with all codes
/// zero; the scale that is NaN has all codes zero and is infinite.
constexpr bool mx_has_codes(uint32_t scale) { return scale > 0 && scale < 255; }
constexpr uint32_t mx_kept_scale(uint32_t scale) { return scale == 0 ? 1 : scale; }

}  // namespace weft::hopper
