// Slices of weights in 12 bits on their way from shared memory to registers.
#pragma once

#include "ops/linear/forms/packed/hopper_layout.h"
#include "ops/linear/forms/packed/windowed.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

using namespace windowed;  // NOLINT(google-build-using-namespace): numbers of its form

/// Four registers of the operand A, of their low parts and their high ones.
__device__ __forceinline__ uint4 packed_operand(uint32_t low01, uint32_t low23, uint32_t high) {
  const auto one = [&](uint32_t low, uint32_t bytes, int number) {
    return __byte_perm(low, kWindowBits >> 8, bytes) | (rotate_left(high, 4 * number) & kHighParts);
  };
  // Two bytes of `low`, each below the window's.
  return {one(low01, 0x4140, 0), one(low01, 0x4342, 1), one(low23, 0x4140, 2),
          one(low23, 0x4342, 3)};
}

/// A compressed slice. `from`: in shared memory.
__device__ __forceinline__ void read_packed(WeightRegisters& to, int lane, uint32_t from) {
  const uint32_t exponent = from + lane / 4;
  to.scales = load_shared_byte(exponent) << 23 | load_shared_byte(exponent + kUnitColumns / 2);
  to.extra = 0;
  load_shared_if(lane < kMostListed, from + kUnitColumns + lane * 4, to.extra);
  const uint32_t low = from + kSliceHeaderBytes + lane * 16;
  const uint32_t high = from + kSliceHeaderBytes + kLowBytes + lane * 8;
  constexpr int kAtOnce = 4;
#pragma unroll
  for (int done = 0; done < kSliceGroups; done += kAtOnce) {
    uint4 lows[kAtOnce];
    uint2 highs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lows[i] = load_shared_bits(low + (done + i) * kCompressedGroupBytes);
      highs[i] = load_shared_pair(high + (done + i) * kCompressedGroupBytes);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      to.group[done + i][0] = packed_operand(lows[i].x, lows[i].y, highs[i].x);
      to.group[done + i][1] = packed_operand(lows[i].z, lows[i].w, highs[i].y);
    }
  }
}

/// Puts a weight of the list in place of the one that stands there for it.
template <int kBatch>
__device__ __forceinline__ void multiply_listed(int lane, const RowSlice<kBatch>& row,
                                                uint32_t listed, RowGroups<kBatch>& part,
                                                UnitSums& sums) {
  const int k = listed >> 16 & 0xff;
  const int of_row = listed >> 24 & 0xf;
  const bool mine = lane == of_row % 8 * 4 + k / 8 % 4;
  const int number = of_row / 8 + k % 4 / 2 * 2;
  part.load_one(row, k / kGroupK);
  const bool second = k / 4 % 2 != 0;
  const uint32_t b0 = second ? part.group[0].z : part.group[0].x;
  const uint32_t b1 = second ? part.group[0].w : part.group[0].y;
  const auto add = [&](uint32_t weight) {
    const uint32_t pair = weight << (k % 2 * 16);
    const auto at = [&](int n) { return mine && number == n ? pair : 0; };
    mma_bf16(sums.part[0], {at(0), at(1), at(2), at(3)}, b0, b1);
  };
  add(listed & 0xffff);
  add(kWindowBits | 0x8000);
}

/// Of all weights that the slice lists.
template <int kBatch>
__device__ __forceinline__ void multiply_all_listed(const WeightRegisters& slice, int lane,
                                                    const RowSlice<kBatch>& row,
                                                    RowGroups<kBatch>& part, UnitSums& sums) {
  uint32_t pending = __ballot_sync(~0u, slice.extra != 0);
#pragma unroll 1
  while (pending != 0) {
    multiply_listed<kBatch>(lane, row, __shfl_sync(~0u, slice.extra, __ffs(pending) - 1), part,
                            sums);
    pending &= pending - 1;
  }
}

}  // namespace weft::hopper
