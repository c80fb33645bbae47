// Slices of weights in MXFP4 on their way from shared memory to registers, the rows that they are
// multiplied with, and their products.
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

/// Four elements, times their row's factor, as two f16 each.
struct MxQuad {
  uint2 first, second;
};
__device__ __forceinline__ MxQuad mx_quad(float4 y) {
  const __half2 firsts[2] = {__floats2half2_rn(y.x, y.y), __floats2half2_rn(y.z, y.w)};
  const float2 a = __half22float2(firsts[0]);
  const float2 b = __half22float2(firsts[1]);
  const __half2 seconds[2] = {__floats2half2_rn(kMxSecond * (y.x - a.x), kMxSecond * (y.y - a.y)),
                              __floats2half2_rn(kMxSecond * (y.z - b.x), kMxSecond * (y.w - b.y))};
  return {reinterpret_cast<const uint2&>(firsts), reinterpret_cast<const uint2&>(seconds)};
}

/// As store_row_quad() does, of a row in f16 whose factor and unit are those of `exponent`.
template <int kBatch>
__device__ __forceinline__ void store_mx_quad(char* slice, int sequence, int quad, float4 x,
                                              uint32_t exponent) {
  const float factor = __uint_as_float(mx_row_factor(exponent));
  const MxQuad parts = mx_quad({factor * x.x, factor * x.y, factor * x.z, factor * x.w});
  char* to = slice + quad / 8 * kRowGroupBytes<kBatch> +
             sequence * (row_parts(kBatch) * kColumnBytes) + quad % 8 * 8;
  *reinterpret_cast<uint2*>(to) = parts.first;
  if constexpr (row_parts(kBatch) == 2) {
    *reinterpret_cast<uint2*>(to + kColumnBytes) = parts.second;
  }
}

/// Of what a clamp of gate and up leaves (ExpertsUpArgs::limit): no number has a larger one.
__device__ __forceinline__ uint32_t mx_clamped_exponent(float limit) {
  return max(__float_as_uint(limit * (limit + 1)) >> 23, kLeastMxExponent);
}

/// Where the units of a row of `slices` slices lie, after it: f32 [slices, kBatch].
template <int kBatch>
__device__ __forceinline__ uint32_t* mx_row_units(char* row, int slices) {
  return reinterpret_cast<uint32_t*>(row + slices * row_slice_bytes(kBatch));
}

/// Turns rows of `slices` slices as store_row_quad() leaves them into f16, and writes their powers
/// of two after them. By the team, after a barrier: slices by turns. Apart from the store, of which
/// kernels have many copies.
template <int kBatch>
__device__ __forceinline__ void turn_rows_to_f16(const Team& team, char* row, int slices,
                                                 int sequences) {
  constexpr int kQuads = kMxRowBlock / 4 / 32;  // of a lane
  static_assert(kMxRowBlock == kSliceK);
  constexpr bool kTwo = row_parts(kBatch) == 2;
  uint32_t* const units = mx_row_units<kBatch>(row, slices);
#pragma unroll 1
  for (int job = team.warp; job < slices * sequences; job += Team::kWarps) {
    const int sequence = kBatch == 1 ? 0 : job / slices;
    const int slice = job - sequence * slices;
    char* const first = row + slice * row_slice_bytes(kBatch) +
                        team.lane / 8 * kRowGroupBytes<kBatch> +
                        sequence * (row_parts(kBatch) * kColumnBytes) + team.lane % 8 * 8;
    const auto parts = [&](int q) {
      return reinterpret_cast<uint2*>(first + q * (row_slice_bytes(kBatch) / kQuads));
    };
    constexpr int kSecond = kColumnBytes / sizeof(uint2);
    float4 x[kQuads];
    uint32_t largest = 0;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const uint2 upper = parts(q)[0];
      const uint2 lower = kTwo ? parts(q)[kSecond] : uint2{};
      x[q] = {bf16_low(upper.x) + bf16_low(lower.x), bf16_high(upper.x) + bf16_high(lower.x),
              bf16_low(upper.y) + bf16_low(lower.y), bf16_high(upper.y) + bf16_high(lower.y)};
      const auto bits = [](float a) { return __float_as_uint(fabsf(a)); };
      largest = max(largest, max(max(bits(x[q].x), bits(x[q].y)), max(bits(x[q].z), bits(x[q].w))));
    }
    const uint32_t exponent = max(__reduce_max_sync(~0u, largest) >> 23, kLeastMxExponent);
    const float factor = __uint_as_float(mx_row_factor(exponent));
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const MxQuad of_quad =
          mx_quad({factor * x[q].x, factor * x[q].y, factor * x[q].z, factor * x[q].w});
      parts(q)[0] = of_quad.first;
      if constexpr (kTwo) {
        parts(q)[kSecond] = of_quad.second;
      }
    }
    if (team.lane == 0) {
      units[slice * kBatch + sequence] = mx_row_unit(exponent);
    }
  }
}

/// Of the two columns of B that a lane has sums of; `from`: of its first sequence.
template <int kBatch>
__device__ __forceinline__ float2 mx_units(uint32_t from) {
  if constexpr (row_parts(kBatch) == 1) {
    const uint2 both = load_shared_pair(from);
    return {__uint_as_float(both.x), __uint_as_float(both.y)};
  } else {
    const float unit = __uint_as_float(load_shared_word(from));
    return {unit, unit};
  }
}

/// sums += `slice` times a slice of the rows, whose powers of two are at `units` in shared memory
/// (of the lane's first sequence), or, folded, once, times two slices of it; what the second f16
/// make is kMxSecond times as large.
template <int kBatch>
__device__ __forceinline__ void multiply_mx(const WeightRegisters& slice,
                                            const RowSlice<kBatch>& row, uint32_t units,
                                            RowGroups<kBatch>& part, UnitSums& sums) {
  constexpr int kAtOnce = RowGroups<kBatch>::kGroups;
  static_assert(2 * kAtOnce == kSliceGroups && kMxRowBlock == kSliceK && kMostMxFold == 1);
  // Of folded slices each half has a slice of the row: 4 bytes on.
  const uint32_t next_unit = (row.stride - kRowGroupBytes<kBatch>) / (kRowGroupBytes<kBatch> / 4);
  const uint4 scales = slice.group[0][1];  // of rows g, then of rows g + 8, a byte a group
  float2 unit;
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
    if (kBatch == 1 || block == 0) {
      unit = mx_units<kBatch>(units + block * next_unit);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      sums.part[block][c] = fmaf(c % 2 == 0 ? unit.x : unit.y, of_block[c], sums.part[block][c]);
    }
  }
}

}  // namespace weft::hopper
