// Slices of weights in MXFP4 on their way from shared memory to registers, the rows that they are
// multiplied with, and their products: of one sequence.
#pragma once

#include <cuda_fp16.h>

#include "ops/linear/forms/mxfp4/hopper_layout.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

/// A slice in MXFP4, as it lies. `from`: in shared memory.
__device__ __forceinline__ void read_mx(WeightRegisters& to, int lane, uint32_t from) {
  to.scales = WeightRegisters::kOnes;
  to.extra = 0;
  const uint32_t of_row = from + lane / 4 * mx_scale_place(1, 0);
  const uint2 upper = load_shared_pair(of_row);
  const uint2 lower = load_shared_pair(of_row + mx_scale_place(kUnitColumns / 2, 0));
  to.group[0][1] = {upper.x, upper.y, lower.x, lower.y};
  const uint32_t codes = from + kSliceHeaderBytes + lane * 8;
#pragma unroll
  for (int i = 0; i < kSliceGroups; ++i) {
    const uint2 words = load_shared_pair(codes + i * kMxGroupBytes);
    to.group[i][0].x = words.x;
    to.group[i][0].y = words.y;
  }
}

/// Turns a row of one sequence, of `slices` slices as store_row_quad() leaves it, into f16, and
/// writes their powers of two after it. By the team, after a barrier: slices by turns. Apart from
/// the store, of which kernels have many copies.
__device__ __forceinline__ void turn_row_to_f16(const Team& team, char* row, int slices) {
  constexpr int kQuads = kMxRowBlock / 4 / 32;  // of a lane
  static_assert(kMxRowBlock == kSliceK);
  auto* units = reinterpret_cast<uint32_t*>(row + slices * row_slice_bytes(1));
#pragma unroll 1
  for (int slice = team.warp; slice < slices; slice += Team::kWarps) {
    char* const first =
        row + slice * row_slice_bytes(1) + team.lane / 8 * kRowGroupBytes<1> + team.lane % 8 * 8;
    const auto parts = [&](int q) {
      return reinterpret_cast<uint2*>(first + q * (row_slice_bytes(1) / kQuads));
    };
    constexpr int kSecond = kColumnBytes / sizeof(uint2);
    float4 x[kQuads];
    uint32_t largest = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const uint2 upper = parts(q)[0];
      const uint2 lower = parts(q)[kSecond];
      x[q] = {bf16_low(upper.x) + bf16_low(lower.x), bf16_high(upper.x) + bf16_high(lower.x),
              bf16_low(upper.y) + bf16_low(lower.y), bf16_high(upper.y) + bf16_high(lower.y)};
      const auto bits = [](float a) { return __float_as_uint(fabsf(a)); };
      largest = max(largest, max(max(bits(x[q].x), bits(x[q].y)), max(bits(x[q].z), bits(x[q].w))));
    }
    const uint32_t exponent = max(__reduce_max_sync(~0u, largest) >> 23, kLeastMxExponent);
    const float factor = __uint_as_float(mx_row_factor(exponent));
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 y{factor * x[q].x, factor * x[q].y, factor * x[q].z, factor * x[q].w};
      const __half2 firsts[2] = {__floats2half2_rn(y.x, y.y), __floats2half2_rn(y.z, y.w)};
      const float2 a = __half22float2(firsts[0]);
      const float2 b = __half22float2(firsts[1]);
      const __half2 seconds[2] = {
          __floats2half2_rn(kMxSecond * (y.x - a.x), kMxSecond * (y.y - a.y)),
          __floats2half2_rn(kMxSecond * (y.z - b.x), kMxSecond * (y.w - b.y))};
      parts(q)[0] = reinterpret_cast<const uint2&>(firsts);
      parts(q)[kSecond] = reinterpret_cast<const uint2&>(seconds);
    }
    if (team.lane == 0) {
      units[slice] = mx_row_unit(exponent);
    }
  }
}

/// sums += `slice` times a slice of the row, whose power of two is at `units` in shared memory, or,
/// folded, once, times two slices of it; what the second f16 make is kMxSecond times as large.
template <int kBatch>
__device__ __forceinline__ void multiply_mx(const WeightRegisters& slice,
                                            const RowSlice<kBatch>& row, uint32_t units,
                                            RowGroups<kBatch>& part, UnitSums& sums) {
  constexpr int kAtOnce = RowGroups<kBatch>::kGroups;
  static_assert(2 * kAtOnce == kSliceGroups && kMxRowBlock == kSliceK && kMostMxFold == 1);
  // Of folded slices each half has a slice of the row: 4 bytes on.
  const uint32_t next_unit = (row.stride - kRowGroupBytes<kBatch>) / (kRowGroupBytes<kBatch> / 4);
  const uint4 scales = slice.group[0][1];  // of rows g, then of rows g + 8, a byte a group
#pragma unroll
  for (int block = 0; block < kSliceGroups / kAtOnce; ++block) {
    part.load(row, block * kAtOnce);
    float of_group[kAtOnce][4] = {};
    // All groups by turns: each product waits for the one before it on the same sums.
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint4& words = slice.group[block * kAtOnce + i][0];
        const uint4& row_words = part.group[i];
        mma_f16(of_group[i],
                {mx_pair(words.x, 2 * j), mx_pair(words.y, 2 * j), mx_pair(words.x, 2 * j + 1),
                 mx_pair(words.y, 2 * j + 1)},
                j == 0 ? row_words.x : row_words.z, j == 0 ? row_words.y : row_words.w);
      }
    }
    float of_block[4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // A byte as an exponent of f32.
      const auto scale = [i](uint32_t of_groups) {
        return __uint_as_float((i < 3 ? of_groups << (23 - 8 * i) : of_groups >> 1) & 0x7f800000u);
      };
      const float upper = scale(block == 0 ? scales.x : scales.y);
      const float lower = scale(block == 0 ? scales.z : scales.w);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float factor = c < 2 ? upper : lower;
        of_block[c] = i == 0 ? factor * of_group[i][c] : fmaf(factor, of_group[i][c], of_block[c]);
      }
    }
    const float unit = __uint_as_float(load_shared_word(units + block * next_unit));
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sums.part[block][c] = fmaf(unit, of_block[c], sums.part[block][c]);
    }
  }
}

}  // namespace weft::hopper
