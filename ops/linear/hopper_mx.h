// Weights in MXFP4 as a resident kernel reads them (see hopper.cuh): codes, eight in a word, that
// become bf16 on their way to the registers, and the scale of each row's 32 of k.
//
// A code's three bits beside the sign are the lowest two of a bf16's exponent and the first of its
// mantissa, 2^-126 of the number; the subnormal one comes out right, too. A word has four pairs of
// codes, one of each pair in either half of it: three of them a shift brings to their places, the
// bits of the fourth stand where the others leave room.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

namespace weft::hopper {

/// 2^126 twice as bf16: what mx_pair() is multiplied with.
inline constexpr uint32_t kMxUnits = 0x7e807e80u;

/// A pair as two bf16 of 2^-126 of their numbers, the first code's in the low half; `pair`: 0 to 3.
constexpr uint32_t mx_pair(uint32_t word, int pair) {
  constexpr uint32_t kCode = 0x81c081c0u;  // sign, and number
  return pair == 0   ? word & kCode
         : pair == 1 ? word << 3 & kCode
         : pair == 2
             ? word << 6 & kCode
             : (word << 1 & 0x80008000u) | (word >> 3 & 0x01800180u) | (word >> 7 & 0x00400040u);
}
/// The half of the word that has a code (as e2m1) in the place of a pair.
constexpr uint32_t mx_placed(uint32_t code, int pair) {
  const uint32_t placed = (code & 8) << 12 | (code & 7) << 6;
  return pair == 3 ? (code & 8) << 11 | (code & 6) << 9 | (code & 1) << 13 : placed >> (3 * pair);
}
/// The two codes of what mx_pair() has made, the first in the low bits.
constexpr uint32_t mx_codes(uint32_t pair) {
  const auto code = [](uint32_t half) { return (half >> 12 & 8) | (half >> 6 & 7); };
  return code(pair & 0xffff) | code(pair >> 16) << 4;
}

/// Where a slice's header has the scale, as e8m0, of a row of the operand A in a group.
constexpr int mx_scale_place(int row, int group) { return row * 8 + group; }
/// A scale of 2^-127, which bf16 has among its subnormal numbers alone, is 2^-126 with all codes
/// zero; the scale that is NaN has all codes zero and is infinite.
constexpr bool mx_has_codes(uint32_t scale) { return scale > 0 && scale < 255; }
constexpr uint32_t mx_kept_scale(uint32_t scale) { return scale == 0 ? 1 : scale; }

}  // namespace weft::hopper
