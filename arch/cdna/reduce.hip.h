// Sums and maxima over the lanes of a wave and the waves of a workgroup, by DPP: operands that an
// instruction takes from other lanes (manual, section "Data Parallel Processing").
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

inline constexpr int kRowLanes = 16;  ///< DPP knows a wave as four rows of 16 lanes

/// DPP controls.
template <int kLanes>
inline constexpr int kRowShiftRight = 0x110 + kLanes;
template <int kLanes>
inline constexpr int kRowRotateRight = 0x120 + kLanes;
inline constexpr int kRowBroadcast15 = 0x142;  ///< lane 15 of each row, to all of the next row
inline constexpr int kRowBroadcast31 = 0x143;  ///< lane 31, to the upper half

/// x of another lane; 0 where there is none.
template <int kControl>
WEFT_GPU float from_lane(float x) {
  return __builtin_bit_cast(
      float, __builtin_amdgcn_update_dpp(0, __builtin_bit_cast(int, x), kControl, 0xf, 0xf, false));
}

struct Sum {
  WEFT_GPU float join(float a, float b) { return a + b; }
};
/// Of numbers that are not negative; a NaN is passed over.
struct Max {
  WEFT_GPU float join(float a, float b) { return __builtin_fmaxf(a, b); }
};

/// Over 16 lanes, known to each of them. All lanes of the wave must be there.
template <class Op>
WEFT_GPU float row_reduce(float x) {
  x = Op::join(x, from_lane<kRowRotateRight<8>>(x));
  x = Op::join(x, from_lane<kRowRotateRight<4>>(x));
  x = Op::join(x, from_lane<kRowRotateRight<2>>(x));
  return Op::join(x, from_lane<kRowRotateRight<1>>(x));
}

/// Over the wave, known to every lane. All lanes must be there.
template <class Op>
WEFT_GPU float wave_reduce(float x) {
  x = row_reduce<Op>(x);
  x = Op::join(x, from_lane<kRowBroadcast15>(x));
  x = Op::join(x, from_lane<kRowBroadcast31>(x));
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), 63));
}

/// Over the four lanes l % 16 + 16 i, known to each of them. All lanes must be there.
template <class Op>
WEFT_GPU float column_reduce(float x) {
#pragma unroll
  for (int distance = kRowLanes; distance < kWaveLanes; distance *= 2) {
    const int other =
        __builtin_amdgcn_ds_bpermute((lane_index() ^ distance) * 4, __builtin_bit_cast(int, x));
    x = Op::join(x, __builtin_bit_cast(float, other));
  }
  return x;
}

/// The sum of a lane's x and of those of the lanes before it. All lanes must be there.
WEFT_GPU int sum_upto_lane(int x) {
#pragma unroll
  for (int distance = 1; distance < kWaveLanes; distance *= 2) {
    const int below = __builtin_amdgcn_ds_bpermute((lane_index() - distance) * 4, x);
    x += lane_index() >= distance ? below : 0;
  }
  return x;
}

/// Over a workgroup of `waves` waves, known to every lane. `partial`: LDS for this reduction alone,
/// one for each wave; 16 at most.
template <class Op>
WEFT_GPU float workgroup_reduce(float x, float* partial, int waves) {
  const float mine = wave_reduce<Op>(x);
  if (waves == 1) {
    return mine;
  }
  if (lane_index() == 0) {
    partial[wave_index()] = mine;
  }
  barrier();
  const int from = lane_index() % kRowLanes;
  return row_reduce<Op>(from < waves ? partial[from] : 0);
}

}  // namespace weft::cdna
