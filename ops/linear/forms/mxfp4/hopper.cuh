// Slices of weights in MXFP4 on their way from shared memory to registers.
#pragma once

#include "ops/linear/forms/mxfp4/hopper_layout.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

/// A slice in MXFP4. `from`: in shared memory.
__device__ __forceinline__ void read_mx(WeightRegisters& to, int lane, uint32_t from) {
  to.scales = WeightRegisters::kOnes;
  to.extra = 0;
  const uint32_t of_row = from + lane / 4 * mx_scale_place(1, 0);
  const uint2 upper = load_shared_pair(of_row);
  const uint2 lower = load_shared_pair(of_row + mx_scale_place(kUnitColumns / 2, 0));
  const uint32_t codes = from + kSliceHeaderBytes + lane * 8;
  // A byte of a word as two bf16.
  const auto scale = [](uint2 of_groups, int i) {
    return __byte_perm(i < 4 ? of_groups.x : of_groups.y, 0, 0x4040 | (i % 4) * 0x0101) << 7;
  };
#pragma unroll
  for (int i = 0; i < kSliceGroups; ++i) {
    const uint2 words = load_shared_pair(codes + i * kMxGroupBytes);
    const uint32_t of_upper = scale(upper, i);
    const uint32_t of_lower = scale(lower, i);
    const auto number = [](uint32_t word, int pair, uint32_t factor) {
      return multiply_bf16(multiply_bf16(mx_pair(word, pair), kMxUnits), factor);
    };
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      to.group[i][j] = {number(words.x, 2 * j, of_upper), number(words.y, 2 * j, of_lower),
                        number(words.x, 2 * j + 1, of_upper), number(words.y, 2 * j + 1, of_lower)};
    }
  }
}

}  // namespace weft::hopper
