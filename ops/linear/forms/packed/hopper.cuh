// Slices of weights in 12 bits on their way from shared memory to registers.
#pragma once

#include "ops/linear/forms/packed/hopper_layout.h"
#include "ops/linear/forms/packed/windowed.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

using namespace windowed;  // NOLINT(google-build-using-namespace): numbers of its form

/// Four registers of the operand A, of their low parts and their high ones.
__device__ __forceinline__ uint4 packed_operand(uint32_t low01, uint32_t low23, uint32_t high) {
  const uint32_t high01 = high_bytes(high, 0);
  const uint32_t high23 = high_bytes(high, 1);
  // Two low bytes, each below its high one.
  constexpr uint32_t kFirst = 0x5140;
  constexpr uint32_t kSecond = 0x7362;
  return {__byte_perm(low01, high01, kFirst), __byte_perm(low01, high01, kSecond),
          __byte_perm(low23, high23, kFirst), __byte_perm(low23, high23, kSecond)};
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
