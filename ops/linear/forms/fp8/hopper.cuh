// Slices of weights in e4m3fn on their way from shared memory to registers, and their products.
#pragma once

#include "ops/linear/forms/fp8/hopper_layout.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

/// Four registers of the operand A, of two words of codes.
__device__ __forceinline__ uint4 fp8_operand(uint32_t registers01, uint32_t registers23) {
  return {multiply_bf16(first_pair(registers01), kFp8Units),
          multiply_bf16(second_pair(registers01), kFp8Units),
          multiply_bf16(first_pair(registers23), kFp8Units),
          multiply_bf16(second_pair(registers23), kFp8Units)};
}

/// A slice of codes. `from`: in shared memory.
__device__ __forceinline__ void read_fp8(WeightRegisters& to, int lane, uint32_t from) {
  to.scales = load_shared_word(from + lane * 4);
  to.extra = 0;
  const uint32_t codes = from + kSliceHeaderBytes + lane * 16;
#pragma unroll
  for (int i = 0; i < kSliceGroups; ++i) {
    const uint4 words = load_shared_bits(codes + i * kFp8GroupBytes);
    to.group[i][0] = fp8_operand(words.x, words.y);
    to.group[i][1] = fp8_operand(words.z, words.w);
  }
}

/// sums += `slice` times a slice of the rows: each half of k by itself.
template <int kBatch>
__device__ __forceinline__ void multiply_fp8(const WeightRegisters& slice, int lane,
                                             const RowSlice<kBatch>& row, RowGroups<kBatch>& part,
                                             UnitSums& sums) {
  constexpr int kHalfGroups = kSliceGroups / 2;
  UnitSums halves;  // part 2h + j: mma j of half h
#pragma unroll
  for (int done = 0; done < kHalfGroups; done += 2) {
    part.load_halves(row, done);
#pragma unroll
    for (int i = 0; i < RowGroups<kBatch>::kGroups; ++i) {
      const int half = i % 2;
      const auto& weights = slice.group[half * kHalfGroups + done + i / 2];
      const uint4& b = part.group[i];
      mma_bf16(halves.part[2 * half], weights[0], b.x, b.y);
      mma_bf16(halves.part[2 * half + 1], weights[1], b.z, b.w);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float scale =
          __uint_as_float(__shfl_sync(~0u, slice.scales, fp8_scale_place(lane / 4 + 8 * r, half)));
#pragma unroll
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        const float sum = halves.part[2 * half][c] + halves.part[2 * half + 1][c];
        sums.part[half][c] = fmaf(scale, sum, sums.part[half][c]);
      }
    }
  }
}

}  // namespace weft::hopper
