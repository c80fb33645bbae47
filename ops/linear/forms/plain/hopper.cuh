// Slices of weights in bf16 on their way from shared memory to registers.
#pragma once

#include "ops/linear/forms/plain/hopper_layout.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

/// `from`: of this lane, in shared memory.
__device__ __forceinline__ void read_plain(WeightRegisters& to, uint32_t from) {
  to.scales = WeightRegisters::kOnes;
  to.extra = 0;
#pragma unroll
  for (int i = 0; i < kSliceGroups; ++i) {
    to.group[i][0] = load_shared_bits(from + i * kGroupBytes);
    to.group[i][1] = load_shared_bits(from + i * kGroupBytes + kGroupBytes / 2);
  }
}

}  // namespace weft::hopper
