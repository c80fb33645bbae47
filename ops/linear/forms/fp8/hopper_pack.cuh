// Packs weights in e4m3fn, and puts them back.
#pragma once

#include "base/scaling.h"
#include "ops/linear/forms/fp8/hopper_layout.h"
#include "ops/linear/forms/hopper_unit.cuh"

namespace weft::hopper {

/// Of four elements of a row of the operand A (Unit::quad()), the codes.
__device__ inline uint32_t fp8_quad(const Unit& unit, int row, int group, int t, int j) {
  const PackJob& job = unit.job();
  const int half = row / 8;
  const int of_half = row % 8 % unit.half_columns();
  const int k = unit.k_of(row, group) + 8 * t + 4 * j;
  return of_half < job.rows[half] && k < job.k
             ? __ldg(reinterpret_cast<const uint32_t*>(unit.arena() + job.source[half] +
                                                       int64_t{of_half} * job.k + k))
             : 0;
}
/// The scale of a row of the operand A in 128 elements of k; 0 where there is nothing.
__device__ inline float fp8_scale(const Unit& unit, int row, int block) {
  const PackJob& job = unit.job();
  const int half = row / 8;
  const int of_half = row % 8 % unit.half_columns();
  if (of_half >= job.rows[half] || block * kScaleBlock >= job.k) {
    return 0;
  }
  const auto* scales = reinterpret_cast<const float*>(unit.arena() + job.scales[half]);
  return scales[job.grid.index(job.first_row[half] + of_half, block)];
}

__device__ inline void pack(Fp8Form, const Unit& unit, char* packed) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kOperands = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kOperands; i += kPackThreads) {
    char* const slice = unit.place(i / kOperands, packed, kFp8SliceBytes);
    const int lane = i % 32;
    uint32_t words[4];
    for (int j = 0; j < 2; ++j) {
      const uint32_t upper = fp8_quad(unit, lane / 4, i / 32, lane % 4, j);
      const uint32_t lower = fp8_quad(unit, lane / 4 + 8, i / 32, lane % 4, j);
      const auto word = [&](int at) {
        return fp8_word(upper >> at & 0xff, upper >> (at + 8) & 0xff, lower >> at & 0xff,
                        lower >> (at + 8) & 0xff);
      };
      words[2 * j] = word(0);
      words[2 * j + 1] = word(16);
    }
    char* const codes = slice + kSliceHeaderBytes + i % kOperands / 32 * kFp8GroupBytes;
    reinterpret_cast<uint4*>(codes)[lane] = {words[0], words[1], words[2], words[3]};
    if (i % kOperands < kUnitColumns * 2) {  // a lane a scale
      const int row = lane / 4 + lane % 4 / 2 * 8;
      const int half = lane % 2;
      reinterpret_cast<float*>(slice)[fp8_scale_place(row, half)] =
          fp8_scale(unit, row, job.fold == 0 ? i / kOperands * 2 + half : 0);
    }
  }
}

__device__ inline void unpack(Fp8Form, const Unit& unit, const char* packed, char* arena) {
  const PackJob& job = unit.job();
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kPackThreads) {
    const auto* from =
        reinterpret_cast<const uint4*>(packed + unit.offset(i / kLanes, kFp8SliceBytes) +
                                       kSliceHeaderBytes + i % kLanes / 32 * kFp8GroupBytes);
    const int lane = i % 32;
    const uint4 words = from[lane];
    const auto put_eight = [&](int row, const auto& pair) {
      if (auto* place = unit.place_of<char>(row, i / 32, lane % 4 * 8, arena); place != nullptr) {
        *reinterpret_cast<uint2*>(place) = {
            fp8_codes(pair(words.x)) | fp8_codes(pair(words.y)) << 16,
            fp8_codes(pair(words.z)) | fp8_codes(pair(words.w)) << 16};
      }
    };
    put_eight(lane / 4, [](uint32_t word) { return first_pair(word); });
    put_eight(lane / 4 + 8, [](uint32_t word) { return second_pair(word); });
  }
}

}  // namespace weft::hopper
