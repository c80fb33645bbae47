// Numbers of codes in e4m3fn.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

/// What the lowest code stands for, as the resident kernel has it: that of NaN is 480.
WEFT_GPU float e4m3_number(uint32_t code) {
  return __builtin_bit_cast(float, (code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

}  // namespace weft::cdna
