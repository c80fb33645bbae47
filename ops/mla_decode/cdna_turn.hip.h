// RoPE in bf16 on AMD, as LatentCache::angles says.
#pragma once

#include "arch/cdna/round.hip.h"

namespace weft::cdna {

/// By their bits: the compiler takes a conversion there and back for none.
WEFT_GPU f32x8 widened(u32x4 words) {
  f32x8 x;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = words[i];
    x[2 * i] = __builtin_bit_cast(float, word << 16);
    x[2 * i + 1] = __builtin_bit_cast(float, word & 0xffff0000);
  }
  return x;
}
WEFT_GPU u32x4 rounded(f32x8 x) { return __builtin_bit_cast(u32x4, round_to<bf16_t>(x)); }

/// Eight pairs of elements, a and b, each product and sum rounded.
WEFT_GPU void turn_halves(u32x4& a, u32x4& b, u32x4 cosines, u32x4 sines) {
  const f32x8 x = widened(a);
  const f32x8 y = widened(b);
  const f32x8 c = widened(cosines);
  const f32x8 s = widened(sines);
  a = rounded(widened(rounded(x * c)) - widened(rounded(y * s)));
  b = rounded(widened(rounded(y * c)) + widened(rounded(x * s)));
}

}  // namespace weft::cdna
