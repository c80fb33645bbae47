// The operands of a resident kernel's products (hopper.cuh) in registers, and their sums.
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

/// A group's k of one column of B, and of all columns that are in use, in shared memory.
inline constexpr int kColumnBytes = kGroupK * 2;
template <int kBatch>
inline constexpr int kRowGroupBytes = row_columns(kBatch) * kColumnBytes;

/// A warp's sums of one unit: of two interleaved runs of groups and both mma of each.
struct UnitSums {
  float part[4][4] = {};

  /// Of columns g and g + 8, for this lane's sequence (with kBatch = 8 for the second one of its
  /// two): see first_sequence().
  template <int kBatch>
  __device__ float2 columns(bool second = false) const {
    const auto sum = [&](int i) { return (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]); };
    if constexpr (row_parts(kBatch) == 2) {
      return {sum(0) + sum(1), sum(2) + sum(3)};
    } else {
      return second ? float2{sum(1), sum(3)} : float2{sum(0), sum(2)};
    }
  }
  /// Likewise, of rows that are two f16 an element as MXFP4 takes them.
  template <int kBatch>
  __device__ float2 mx_columns(bool second = false) const {
    const auto sum = [&](int i) { return part[0][i] + part[1][i]; };
    if constexpr (row_parts(kBatch) == 2) {
      return {fmaf(1 / kMxSecond, sum(1), sum(0)), fmaf(1 / kMxSecond, sum(3), sum(2))};
    } else {
      return second ? float2{sum(1), sum(3)} : float2{sum(0), sum(2)};
    }
  }
  /// The first sequence whose sums a lane has. With kBatch = 1 only lanes with t = 0 have any.
  template <int kBatch>
  __device__ static int first_sequence(int lane) {
    return lane % 4 * (2 / row_parts(kBatch));
  }
};

/// What the B operands of a slice are read from: of a unit that is folded, columns that are idle
/// otherwise have other groups of k, and what the lanes read is again one run.
template <int kBatch>
struct RowSlice {
  uint32_t from;    ///< in shared memory, of this lane
  uint32_t stride;  ///< to the next group of A
  bool has_column;  ///< this lane's column is in use

  __device__ __forceinline__ RowSlice(int lane, uint32_t row, int slice, int fold)
      : stride(kRowGroupBytes<kBatch> << fold) {
    const int lanes = 4 * row_columns(kBatch) << fold;
    from = row + slice * (kSliceGroups * stride) + (lane & (lanes - 1)) * 16;
    has_column = lane < lanes;
  }
  __device__ __forceinline__ void advance() { from += kSliceGroups * stride; }
};

/// The rows' operands of some groups, in the lanes of the columns that are in use; what the other
/// lanes hold goes to columns that nobody reads. To be made once for many loads, and near them:
/// registers that are never written in some lanes count as taken from the first time on that
/// somebody may have, in a loop around all else too.
template <int kBatch>
struct RowGroups {
  static constexpr int kGroups = 4;
  uint4 group[kGroups] = {};

  __device__ __forceinline__ void load(const RowSlice<kBatch>& row, int first) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      load_shared_if(row.has_column, row.from + (first + i) * row.stride, group[i]);
    }
  }
  /// Groups first and first + 1 of each half of a slice, by turns.
  __device__ __forceinline__ void load_halves(const RowSlice<kBatch>& row, int first) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int which = first + i / 2 + i % 2 * (kSliceGroups / 2);
      load_shared_if(row.has_column, row.from + which * row.stride, group[i]);
    }
  }
  /// One of them alone.
  __device__ __forceinline__ void load_one(const RowSlice<kBatch>& row, int which) {
    load_shared_if(row.has_column, row.from + which * row.stride, group[0]);
  }
};

/// Products of two pairs of bf16, rounded; subnormals are numbers like any other.
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// A slice of weights in registers, as the readers of the forms (forms/) leave it.
struct WeightRegisters {
  static constexpr uint32_t kOnes = 127u << 23 | 127u;

  uint4 group[kSliceGroups][2];
  /// Exponents of what scales this lane's rows of A: << 23, and as a number. Of fp8: the scale that
  /// the slice's header has in this lane's place.
  uint32_t scales;
  uint32_t extra;  ///< in a lane each: a weight that is listed, or 0
};

/// sums += the groups of `weights` times a slice of the rows in shared memory, which comes through
/// `part`.
template <int kBatch>
__device__ __forceinline__ void multiply_groups(const WeightRegisters& weights,
                                                const RowSlice<kBatch>& row,
                                                RowGroups<kBatch>& part, UnitSums& sums) {
  constexpr int kAtOnce = RowGroups<kBatch>::kGroups;
#pragma unroll
  for (int done = 0; done < kSliceGroups; done += kAtOnce) {
    part.load(row, done);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      mma_bf16(sums.part[i % 2 * 2], weights.group[done + i][0], part.group[i].x, part.group[i].y);
      mma_bf16(sums.part[i % 2 * 2 + 1], weights.group[done + i][1], part.group[i].z,
               part.group[i].w);
    }
  }
}

}  // namespace weft::hopper
