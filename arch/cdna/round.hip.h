// Rounding f32 to 16 bits.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

/// x, but for a NaN the one that arithmetic makes: round_to() can take what follows from it.
WEFT_GPU float plain_nan(float x) { return x != x ? __builtin_nanf("") : x; }

/// Eight numbers to T (bf16 or f16), rounded to nearest even. A NaN in x must have a low half of 0,
/// as those have that come from f16, bf16 and fp8 numbers and from arithmetic: then rounding cannot
/// carry it into another number, which the compiler's conversion spends two more instructions to
/// exclude.
template <class T>
WEFT_GPU Vector<T, 8> round_to(f32x8 x) {
  if constexpr (kTarget == Target::gfx950 || !__is_same(T, bf16_t)) {
    return __builtin_convertvector(x, Vector<T, 8>);
  } else {
    u32x4 packed;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t rounded[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float each = x[2 * i + j];  // a bit_cast of a vector's element itself takes the first
        const auto bits = __builtin_bit_cast(uint32_t, each);
        rounded[j] = bits + 0x7fff + ((bits >> 16) & 1);
      }
      packed[i] = __builtin_amdgcn_perm(rounded[1], rounded[0], 0x07060302);  // the upper halves
    }
    return __builtin_bit_cast(Vector<T, 8>, packed);
  }
}

}  // namespace weft::cdna
