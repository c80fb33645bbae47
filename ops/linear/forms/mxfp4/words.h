// Words of eight codes in MXFP4 as AMD's resident kernels read them, which become bf16 on their way
// to the registers.
//
// A code's three bits beside the sign are the lowest two of a bf16's exponent and the first of its
// mantissa, 2^-126 of the number; the subnormal one comes out right, too. A word has four pairs of
// codes, one of each pair in either half of it: three of them a shift brings to their places, the
// bits of the fourth stand where the others leave room.
//
// Plain functions of numbers, for kernels, those that pack for them, and tests.
#pragma once

#include <cstdint>

namespace weft::mx_words {

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

}  // namespace weft::mx_words
