// Packs weights in bf16, and puts them back.
#pragma once

#include "ops/linear/forms/hopper_unit.cuh"
#include "ops/linear/forms/plain/hopper_layout.h"

namespace weft::hopper {

__device__ inline void pack(PlainForm, const Unit& unit, char* packed) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kOperands = kPlainSliceBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kOperands; i += kPackThreads) {
    auto* to = reinterpret_cast<uint4*>(unit.place(i / kOperands, packed, kPlainSliceBytes));
    to[i % kOperands] = operand_of(unit, i / 64, i % 32, i / 32 % 2);
  }
}

__device__ inline void unpack(PlainForm, const Unit& unit, const char* packed, char* arena) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kPackThreads) {
    const auto* from = reinterpret_cast<const uint4*>(
        packed + unit.offset(i / kLanes, kPlainSliceBytes) + i % kLanes / 32 * kGroupBytes);
    const int lane = i % 32;
    const uint4 first = from[lane];
    const uint4 second = from[lane + 32];
    put(unit, lane / 4, i / 32, lane % 4, {first.x, first.z, second.x, second.z}, arena);
    put(unit, lane / 4 + 8, i / 32, lane % 4, {first.y, first.w, second.y, second.w}, arena);
  }
}

}  // namespace weft::hopper
