// Packs weights in MXFP4, and puts them back but for what hopper_layout.h says of the least and the
// NaN scale.
#pragma once

#include "base/mx.h"
#include "ops/linear/forms/hopper_unit.cuh"
#include "ops/linear/forms/mxfp4/hopper_layout.h"

namespace weft::hopper {

/// Of a row of the operand A: the eight codes from 8 t of a group on, and the group's scale; null:
/// there are none.
__device__ inline uint32_t* mx_codes_of(const Unit& unit, int row, int group, int t, char* arena) {
  const PackJob& job = unit.job();
  const int k = unit.k_of(row, group) + 8 * t;
  return unit.has(row, k)
             ? reinterpret_cast<uint32_t*>(arena + job.source[row / 8] +
                                           (int64_t{unit.row_of_half(row)} * job.k + k) / 2)
             : nullptr;
}
__device__ inline uint8_t* mx_scale_of(const Unit& unit, int row, int group, char* arena) {
  static_assert(kGroupK == kMxBlock);
  const PackJob& job = unit.job();
  const int k = unit.k_of(row, group);
  return unit.has(row, k)
             ? reinterpret_cast<uint8_t*>(arena + job.scales[row / 8] +
                                          unit.row_of_half(row) * (job.k / kMxBlock) + k / kMxBlock)
             : nullptr;
}

/// What is not there is zero: its codes are.
__device__ inline void pack(MxForm, const Unit& unit, char* packed) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  char* const from = const_cast<char*>(unit.arena());
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kPackThreads) {
    char* const slice = unit.place(i / kLanes, packed, kMxSliceBytes);
    const int lane = i % 32;
    const int group = i / 32;
    const auto scale = [&](int row) {
      const uint8_t* place = mx_scale_of(unit, row, group, from);
      return place != nullptr ? uint32_t{*place} : 0;
    };
    const auto word = [&](int row) {
      const uint32_t* place = mx_codes_of(unit, row, group, lane % 4, from);
      const uint32_t codes = place != nullptr && mx_has_codes(scale(row)) ? *place : 0;
      return mx_stream_word(codes);
    };
    const int of_slice = group % kSliceGroups;
    reinterpret_cast<uint2*>(slice + kSliceHeaderBytes + of_slice * kMxGroupBytes)[lane] = {
        word(lane / 4), word(lane / 4 + 8)};
    if (lane < kUnitColumns) {
      slice[mx_scale_place(lane, of_slice)] = static_cast<char>(mx_kept_scale(scale(lane)));
    }
  }
}

__device__ inline void unpack(MxForm, const Unit& unit, const char* packed, char* arena) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kPackThreads) {
    const char* const slice = packed + unit.offset(i / kLanes, kMxSliceBytes);
    const int lane = i % 32;
    const int group = i / 32;
    const int of_slice = group % kSliceGroups;
    const uint2 words =
        reinterpret_cast<const uint2*>(slice + kSliceHeaderBytes + of_slice * kMxGroupBytes)[lane];
    const auto put_eight = [&](int row, uint32_t word) {
      if (auto* place = mx_codes_of(unit, row, group, lane % 4, arena); place != nullptr) {
        *place = mx_stream_codes(word);
      }
    };
    put_eight(lane / 4, words.x);
    put_eight(lane / 4 + 8, words.y);
    if (lane < kUnitColumns) {
      if (auto* place = mx_scale_of(unit, lane, group, arena); place != nullptr) {
        *place = static_cast<uint8_t>(slice[mx_scale_place(lane, of_slice)]);
      }
    }
  }
}

}  // namespace weft::hopper
