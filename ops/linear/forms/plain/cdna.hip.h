// Weights of 16 bits as a resident kernel on CDNA reads them (engine/cdna/layout.h): bf16 as they
// are, f16 in two parts.
#pragma once

#include "arch/cdna/bf16_pair.hip.h"

namespace weft::cdna {

/// Eight f16 as the sums of two bf16 each, exactly: the bits beyond the upper one's are three.
struct HalfParts {
  u32x4 upper, lower;

  __device__ __attribute__((always_inline)) explicit HalfParts(u32x4 weights) {
    constexpr uint32_t kUpperHalves = 0x07060302;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = __builtin_convertvector(
          __builtin_bit_cast(Vector<f16_t, 2>, uint32_t{weights[i]}), Vector<float, 2>);
      const float first = pair[0];
      const float second = pair[1];
      const auto first_bits = __builtin_bit_cast(uint32_t, first);
      const auto second_bits = __builtin_bit_cast(uint32_t, second);
      upper[i] = __builtin_amdgcn_perm(second_bits, first_bits, kUpperHalves);
      lower[i] = __builtin_amdgcn_perm(
          __builtin_bit_cast(uint32_t, second - bf16_high(second_bits)),
          __builtin_bit_cast(uint32_t, first - bf16_high(first_bits)), kUpperHalves);
    }
  }
};

}  // namespace weft::cdna
