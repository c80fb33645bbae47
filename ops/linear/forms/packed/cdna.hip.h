// Weights in 12 bits as a resident kernel on CDNA reads them (engine/cdna/layout.h).
#pragma once

#include "arch/cdna/gpu.hip.h"
#include "ops/linear/forms/packed/windowed.h"

namespace weft::cdna {

/// Four registers of the operand A of a lane's three words.
WEFT_GPU u32x4 packed_operand(u32x4 weights) {
  constexpr uint32_t kWindows = windowed::kWindowBits | windowed::kWindowBits << 16;
  u32x4 pairs;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    // Low bytes between the window's, then the high parts.
    const uint32_t low =
        __builtin_amdgcn_perm(weights[i / 2], kWindows, i % 2 == 0 ? 0x01050104u : 0x01070106u);
    pairs[i] = (windowed::rotate_left(weights[2], 4 * i) & windowed::kHighParts) | low;
  }
  return pairs;
}

}  // namespace weft::cdna
