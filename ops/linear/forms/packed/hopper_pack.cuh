// Packs weights in 12 bits, and puts them back bit for bit but for the signs of zeros in columns
// that have nothing else.
#pragma once

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "ops/linear/forms/hopper_unit.cuh"
#include "ops/linear/forms/packed/hopper_layout.h"
#include "ops/linear/forms/packed/windowed.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

using namespace windowed;  // NOLINT(google-build-using-namespace): numbers of its form

/// The first exponents of the windows of so many columns' weights, to `firsts` in shared memory; 0:
/// all are zero. By the whole block, which finds them there. `quad_of`: four weights of a column
/// from k on.
template <class QuadOf>
__device__ void find_windows(int columns, int k, int* firsts, const QuadOf& quad_of) {
  __shared__ int counts[kUnitColumns][256];  // of exponents; of 0 zeros alone
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kUnitColumns * 256; i += kPackThreads) {
    (&counts[0][0])[i] = 0;
  }
  __syncthreads();
  for (int column = 0; column < columns; ++column) {
    for (int at = 4 * thread; at < k; at += 4 * kPackThreads) {
      const uint2 quad = quad_of(column, at);
      for (const uint32_t pair : {quad.x, quad.y}) {
        for (const uint32_t weight : {pair & 0xffff, pair >> 16}) {
          if ((weight & 0x7fff) == 0 || bf16_exponent(weight) > 0) {
            atomicAdd(&counts[column][bf16_exponent(weight)], 1);
          }
        }
      }
    }
  }
  __syncthreads();
  if (thread < columns) {
    firsts[thread] = best_window(counts[thread], k);
  }
  __syncthreads();
}

/// Weights that a run of kMost listed ones in memory has for those beside the windows.
template <int kMost>
struct ListedWeights {
  uint32_t list[kMost];
  int count;

  /// What stands for a weight of a column whose window begins at `first`. `row`, `k`: see listed().
  __device__ uint32_t code(uint32_t weight, int first, int row, int k, uint32_t* refused) {
    if (first == 0) {
      return kWindowBits;  // scaled to zero
    }
    if (in_window(weight, first)) {
      return move_to_window(weight, first);
    }
    const int place = atomicAdd(&count, 1);
    if (place >= kMost || !can_be_listed(weight, first)) {
      atomicExch(refused, 1u);
    } else {
      list[place] = listed(row, k, move_listed(weight, first));
    }
    return kWindowBits;
  }
  /// By at least kMost threads: in order of their places, so that the sums' bits repeat, zeros
  /// behind them.
  __device__ void store(int thread, uint32_t* to) const {
    const int there = min(count, kMost);
    if (thread < kMost) {
      int place = 0;
      for (int i = 0; i < there && thread < there; ++i) {
        place += list[i] < list[thread] ? 1 : 0;
      }
      to[thread < there ? place : thread] = thread < there ? list[thread] : 0;
    }
  }
};

/// What a lane has of a group: low and high parts of its 16 weights, four registers of the operand
/// A of each of two mma. `code(j, number, second)`: of register `number` of mma j, its first or
/// second half.
template <class Code>
__device__ void store_group(char* group, int lane, const Code& code) {
  uint32_t low[4] = {};
  uint32_t high[2] = {};
  for (int j = 0; j < 2; ++j) {
    for (int number = 0; number < 4; ++number) {
      const uint32_t first = code(j, number, 0);
      const uint32_t second = code(j, number, 1);
      low[2 * j + number / 2] |= (low_part(first) | low_part(second) << 8) << (number % 2 * 16);
      high[j] |= high_parts(first | second << 16, number);
    }
  }
  reinterpret_cast<uint4*>(group)[lane] = {low[0], low[1], low[2], low[3]};
  reinterpret_cast<uint2*>(group + kLowBytes)[lane] = {high[0], high[1]};
}

__device__ inline void pack(PackedForm, const Unit& unit, char* packed, uint32_t* refused) {
  const PackJob& job = unit.job();
  __shared__ int firsts[kUnitColumns];
  __shared__ ListedWeights<kMostListed> listed_weights;
  const int thread = static_cast<int>(threadIdx.x);
  find_windows(unit.columns(), job.k, firsts,
               [&](int column, int k) { return unit.of_column(column, k); });

  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  for (int slice = 0; slice < slices; ++slice) {
    char* const to = unit.place(slice, packed, kCompressedSliceBytes);
    if (thread == 0) {
      listed_weights.count = 0;
    }
    __syncthreads();
    const int lane = thread % 32;
    const int of_slice = thread / 32;
    const int group = slice * kSliceGroups + of_slice;
    static_assert(kPackThreads == kSliceGroups * 32);
    const uint4 operands[2] = {operand_of(unit, group, lane, 0), operand_of(unit, group, lane, 1)};
    store_group(to + kSliceHeaderBytes + of_slice * kCompressedGroupBytes, lane,
                [&](int j, int number, int second) -> uint32_t {
                  const int row = lane / 4 + number % 2 * 8;
                  const int k = lane % 4 * 8 + j * 4 + number / 2 * 2 + second;
                  if (!unit.has(row, unit.k_of(row, group) + k)) {
                    return kWindowBits;  // multiplied by zero
                  }
                  const uint32_t pair = (&operands[j].x)[number];
                  return listed_weights.code(pair >> 16 * second & 0xffff,
                                             firsts[unit.column_of(row)], row,
                                             of_slice * kGroupK + k, refused);
                });
    __syncthreads();
    if (thread < kUnitColumns) {
      const int first = firsts[unit.column_of(thread)];
      to[thread] = static_cast<char>(first == 0 ? kZeroScale : scale_exponent(first));
    }
    listed_weights.store(thread, reinterpret_cast<uint32_t*>(to + kUnitColumns));
    __syncthreads();
  }
}

/// A unit's compressed slices come through shared memory, so that memory is read and written in
/// whole lines: a warp stores a slice of one row, then of the row eight below.
__device__ inline void unpack(PackedForm, const Unit& unit, const char* packed, char* arena) {
  const PackJob& job = unit.job();
  constexpr int kAtOnce = 3;  // slices that are waited for together; twice as many are on their way
  __shared__ alignas(128) char staged[2][kAtOnce][kCompressedSliceBytes];
  __shared__ Barrier there[2];
  static_assert(kPackThreads == kUnitColumns / 2 * 32 && kSliceK == 256 && kMostListed <= 32);
  const int row = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  const auto ask = [&](int first) {
    if (threadIdx.x == 0 && first < slices) {
      const int stage = first / kAtOnce % 2;
      const int count = min(kAtOnce, slices - first);
      there[stage].arrive_expect(count * kCompressedSliceBytes);
      for (int i = 0; i < count; ++i) {
        load_bytes(staged[stage][i], packed + unit.offset(first + i, kCompressedSliceBytes),
                   kCompressedSliceBytes, there[stage]);
      }
    }
  };
  if (threadIdx.x == 0) {
    there[0].init(1);
    there[1].init(1);
    fence_barriers();
  }
  __syncthreads();
  ask(0);
  ask(kAtOnce);
#pragma unroll 1
  for (int first = 0; first < slices; first += kAtOnce) {
    const int stage = first / kAtOnce % 2;
    there[stage].wait(first / kAtOnce / 2 % 2);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i == slices) {
        break;
      }
      const char* const slice = staged[stage][i];
      const char* const group = slice + kSliceHeaderBytes + lane / 4 * kCompressedGroupBytes;
      const int of_group = row * 4 + lane % 4;
      const uint4 low = reinterpret_cast<const uint4*>(group)[of_group];
      const uint2 high = reinterpret_cast<const uint2*>(group + kLowBytes)[of_group];
      const auto of_row = [&](int lower) {
        return uint32_t{static_cast<uint8_t>(slice[row + lower * (kUnitColumns / 2)])};
      };
      // As pack() has it: of pairs 0 to 3 of each half of the eight, the even ones are of the
      // upper row, the odd ones of the lower. The product is move_back() of both of a pair: what is
      // in a window is no subnormal before or after.
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const uint32_t factor = of_row(lower) << 7 | of_row(lower) << 23;
        const auto pair = [&](uint32_t high_word, uint32_t low_word, int number) {
          const uint32_t moved = join_parts(high_word, number, low_word >> (number % 2 * 16));
          return multiply_bf16(moved, factor);
        };
        put(unit, row + lower * (kUnitColumns / 2), (first + i) * kSliceGroups + lane / 4, lane % 4,
            {pair(high.x, low.x, lower), pair(high.x, low.y, 2 + lower), pair(high.y, low.z, lower),
             pair(high.y, low.w, 2 + lower)},
            arena);
      }
      __syncwarp();  // what is listed of these rows takes the place of what stands for it
      const uint32_t entry =
          lane < kMostListed ? reinterpret_cast<const uint32_t*>(slice + kUnitColumns)[lane] : 0;
      const auto listed_row = static_cast<int>(entry >> 24 & 0x7f);
      if (entry != 0 && listed_row % (kUnitColumns / 2) == row) {
        const auto k = static_cast<int>(entry >> 16 & 0xff);
        auto* const place = unit.place_of<uint16_t>(
            listed_row, (first + i) * kSliceGroups + k / kGroupK, k % kGroupK, arena);
        if (place != nullptr) {
          *place = static_cast<uint16_t>(
              move_back(entry & 0xffff, of_row(listed_row / (kUnitColumns / 2))));
        }
      }
    }
    __syncthreads();  // all have read the stage
    ask(first + 2 * kAtOnce);
  }
}

}  // namespace weft::hopper
