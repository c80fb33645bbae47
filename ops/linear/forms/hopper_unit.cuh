// What the packers of all forms have in common: a block packs a unit, or puts it back where it came
// from.
#pragma once

#include <cstdint>

#include "ops/linear/forms/hopper_unit.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

inline constexpr int kPackThreads = 256;

/// A unit's weights, by the block that packs it.
class Unit {
 public:
  __device__ Unit(const PackJob& job, const char* arena)
      : job_(job), arena_(arena), half_(kUnitColumns / 2 >> job.fold) {}

  /// Where a slice lies in the packed weights.
  __device__ int64_t offset(int slice, int slice_bytes) const {
    const int place = job_.slices == 0 ? slice : SliceRuns(job_.slices).place(job_.first + slice);
    return job_.destination + int64_t{place} * slice_bytes;
  }
  __device__ char* place(int slice, char* packed, int slice_bytes) const {
    return packed + offset(slice, slice_bytes);
  }
  /// Four elements of a row of the operand A, in a group of the unit: where it is folded, some rows
  /// have other groups of k.
  __device__ uint2 quad(int row, int group, int t, int j) const {
    return quad(row / 8, row % 8 % half_, k_of(row, group) + 8 * t + 4 * j);
  }
  /// The first k of what a row has in a group.
  __device__ int k_of(int row, int group) const {
    return ((group << job_.fold) + row % 8 / half_) * kGroupK;
  }
  __device__ const PackJob& job() const { return job_; }
  __device__ const char* arena() const { return arena_; }
  __device__ int half_columns() const { return half_; }
  __device__ int columns() const { return 2 * half_; }
  /// Which of its half's columns a row has.
  __device__ int row_of_half(int row) const { return row % 8 % half_; }
  /// The column of the unit in a row.
  __device__ int column_of(int row) const { return row / 8 * half_ + row % 8 % half_; }
  __device__ bool has(int row, int k) const {
    return row % 8 % half_ < job_.rows[row / 8] && k < job_.k;
  }
  __device__ uint2 of_column(int column, int k) const {
    return quad(column / half_, column % half_, k);
  }
  /// Where element k of a row's group lies in the arena; null: nowhere.
  template <class T>
  __device__ T* place_of(int row, int group, int k, char* arena) const {
    const int at = k_of(row, group) + k;
    return has(row, at) ? reinterpret_cast<T*>(arena + job_.source[row / 8]) +
                              (int64_t{row % 8 % half_} * job_.k + at)
                        : nullptr;
  }

 private:
  __device__ uint2 quad(int half, int row, int k) const {
    if (job_.pitch != 0) {
      return across(half, row, k);
    }
    return row < job_.rows[half] && k < job_.k
               ? __ldg(reinterpret_cast<const uint2*>(arena_ + job_.source[half] +
                                                      (static_cast<int64_t>(row) * job_.k + k) * 2))
               : uint2{};
  }

  /// Of a row whose k are not side by side.
  __device__ uint2 across(int half, int row, int k) const {
    if (row >= job_.rows[half] || k >= job_.k) {
      return {};
    }
    const auto* from = reinterpret_cast<const uint16_t*>(arena_ + job_.source[half]) + row;
    const auto element = [&](int i) {
      return uint32_t{__ldg(from + (int64_t{k} + i) * job_.pitch)};
    };
    return {element(0) | element(1) << 16, element(2) | element(3) << 16};
  }

  const PackJob& job_;
  const char* arena_;
  const int half_;  // columns
};

/// Four registers of the operand A that lane (g, t) of mma j has: a.x, a.z of column g; a.y, a.w of
/// column g + 8.
__device__ inline uint4 operand_of(const Unit& unit, int group, int lane, int j) {
  const uint2 upper = unit.quad(lane / 4, group, lane % 4, j);
  const uint2 lower = unit.quad(lane / 4 + 8, group, lane % 4, j);
  return {upper.x, lower.x, upper.y, lower.y};
}

/// Eight elements of a row's group, from 8 t on, to where they lie in the arena.
__device__ inline void put(const Unit& unit, int row, int group, int t, uint4 eight, char* arena) {
  if (auto* place = unit.place_of<uint16_t>(row, group, 8 * t, arena); place != nullptr) {
    *reinterpret_cast<uint4*>(place) = eight;
  }
}

}  // namespace weft::hopper
