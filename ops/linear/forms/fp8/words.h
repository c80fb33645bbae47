// Weights in e4m3fn, four in a word, that become bf16 on their way to the registers of a resident
// kernel (ops/linear/hopper.cuh, engine/cdna/layout.h), exactly.
//
// A code's seven bits beside the sign are a bf16's exponent and mantissa, 2^-120 of the number,
// where they stand right below its exponent's three upper bits; subnormals come out right, too. Two
// pairs of codes have a word: those of the first stand where they are wanted, those of the second
// in the bits between, and two shifts bring them there. The code of NaN is 480.
//
// Plain functions of numbers, for what packs, what multiplies, and tests.
#pragma once

#include <cstdint>

namespace weft::fp8_words {

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

}  // namespace weft::fp8_words
