// Weights in 12 bits as a resident kernel on CDNA reads them (engine/cdna/layout.h).
#pragma once

#include "arch/cdna/gpu.hip.h"
#include "ops/linear/forms/packed/windowed.h"

namespace weft::cdna {

/// Four registers of the operand A of a lane's three words.
WEFT_GPU u32x4 packed_operand(u32x4 weights) {
  u32x4 pairs;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t high = windowed::high_bytes(weights[2], half);
    // Two low bytes, each below its high one.
    pairs[2 * half] = __builtin_amdgcn_perm(high, weights[half], 0x05010400u);
    pairs[2 * half + 1] = __builtin_amdgcn_perm(high, weights[half], 0x07030602u);
  }
  return pairs;
}

}  // namespace weft::cdna
