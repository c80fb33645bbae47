// Weights in MXFP4 as a resident kernel on CDNA reads them (engine/cdna/layout.h).
#pragma once

#include "arch/cdna/gpu.hip.h"
#include "ops/linear/forms/mxfp4/words.h"

namespace weft::cdna {

/// Four registers of the operand A of a word of codes: 2^-126 of bf16 numbers.
WEFT_GPU u32x4 mx_operand(uint32_t codes) {
  using namespace mx_words;
  return {mx_pair(codes, 0), mx_pair(codes, 1), mx_pair(codes, 2), mx_pair(codes, 3)};
}
/// Of four columns, whose scales (e8m0) a word has.
WEFT_GPU f32x4 mx_scales(uint32_t of_columns) {
  constexpr uint32_t kExponent = 0x7f800000u;
  return __builtin_bit_cast(f32x4, u32x4{of_columns << 23 & kExponent, of_columns << 15 & kExponent,
                                         of_columns << 7 & kExponent, of_columns >> 1 & kExponent});
}

}  // namespace weft::cdna
