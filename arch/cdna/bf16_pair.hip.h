// Two bf16 in a word.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

WEFT_GPU float bf16_low(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
WEFT_GPU float bf16_high(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xffff0000u); }
WEFT_GPU uint32_t pack_bf16(float low, float high) {
  const uint32_t a = __builtin_bit_cast(uint16_t, static_cast<bf16_t>(low));
  const uint32_t b = __builtin_bit_cast(uint16_t, static_cast<bf16_t>(high));
  return a | b << 16;
}

}  // namespace weft::cdna
