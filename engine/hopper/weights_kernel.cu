#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "base/mx.h"
#include "engine/hopper/weights_kernel.h"
#include "ops/linear/hopper.cuh"
#include "ops/linear/hopper_fp8.h"
#include "ops/linear/hopper_layout.h"
#include "ops/linear/hopper_mx.h"
#include "ops/linear/windowed.h"

namespace weft::hopper {

using namespace windowed;  // NOLINT(google-build-using-namespace): numbers of its form
namespace {

constexpr int kThreads = 256;

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__device__ void store_four(const float (&x)[4], float* out) {
  *reinterpret_cast<float4*>(out) = {x[0], x[1], x[2], x[3]};
}
__device__ void store_four(const float (&x)[4], __nv_bfloat16* out) {
  reinterpret_cast<__nv_bfloat162*>(out)[0] = __floats2bfloat162_rn(x[0], x[1]);
  reinterpret_cast<__nv_bfloat162*>(out)[1] = __floats2bfloat162_rn(x[2], x[3]);
}
__device__ void store_four(const float (&x)[4], __half* out) {
  reinterpret_cast<__half2*>(out)[0] = __floats2half2_rn(x[0], x[1]);
  reinterpret_cast<__half2*>(out)[1] = __floats2half2_rn(x[2], x[3]);
}
__device__ void store_four(const float (&x)[4], __nv_fp8_e4m3* out) {
  *reinterpret_cast<__nv_fp8x4_e4m3*>(out) = __nv_fp8x4_e4m3(float4{x[0], x[1], x[2], x[3]});
}

template <class T>
__global__ void fill_random_kernel(RandomTensor tensor, int64_t groups, T* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < groups;
       i += int64_t{kThreads} * gridDim.x) {
    const uint64_t bits = mix(tensor.key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull);
    float x[4];
    for (int j = 0; j < 4; ++j) {
      const int integer = 2 * static_cast<int>(bits >> (16 * j) & 0xffff) - 65535;
      x[j] = static_cast<float>(integer + tensor.offset) * tensor.scale;
    }
    store_four(x, out + 4 * i);
  }
}

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
  __device__ int columns() const { return 2 * half_; }
  /// The column of the unit in a row.
  __device__ int column_of(int row) const { return row / 8 * half_ + row % 8 % half_; }
  __device__ bool has(int row, int k) const {
    return row % 8 % half_ < job_.rows[row / 8] && k < job_.k;
  }
  __device__ uint2 of_column(int column, int k) const {
    return quad(column / half_, column % half_, k);
  }
  /// As quad(), of codes.
  __device__ uint32_t codes(int row, int group, int t, int j) const {
    const int half = row / 8;
    const int of_half = row % 8 % half_;
    const int k = k_of(row, group) + 8 * t + 4 * j;
    return of_half < job_.rows[half] && k < job_.k
               ? __ldg(reinterpret_cast<const uint32_t*>(arena_ + job_.source[half] +
                                                         int64_t{of_half} * job_.k + k))
               : 0;
  }
  /// The scale of a row of the operand A in 128 elements of k; 0 where there is nothing.
  __device__ float scale(int row, int block) const {
    const int half = row / 8;
    const int of_half = row % 8 % half_;
    if (of_half >= job_.rows[half] || block * kScaleBlock >= job_.k) {
      return 0;
    }
    const auto* scales = reinterpret_cast<const float*>(arena_ + job_.scales[half]);
    return scales[job_.grid.index(job_.first_row[half] + of_half, block)];
  }
  /// Of a row in MXFP4, which is not folded: the eight codes from 8 t of a group on, and the
  /// group's scale.
  __device__ uint32_t* mx_codes_of(int row, int group, int t, char* arena) const {
    const int k = group * kGroupK + 8 * t;
    return has(row, k) ? reinterpret_cast<uint32_t*>(arena + job_.source[row / 8] +
                                                     (int64_t{row % 8} * job_.k + k) / 2)
                       : nullptr;
  }
  __device__ uint8_t* mx_scale_of(int row, int group, char* arena) const {
    static_assert(kGroupK == kMxBlock);
    return has(row, group * kGroupK)
               ? reinterpret_cast<uint8_t*>(arena + job_.scales[row / 8] +
                                            row % 8 * (job_.k / kMxBlock) + group)
               : nullptr;
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
__device__ uint4 operand_of(const Unit& unit, int group, int lane, int j) {
  const uint2 upper = unit.quad(lane / 4, group, lane % 4, j);
  const uint2 lower = unit.quad(lane / 4 + 8, group, lane % 4, j);
  return {upper.x, lower.x, upper.y, lower.y};
}

__device__ void pack_plain(const PackJob& job, const Unit& unit, char* packed) {
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kOperands = kPlainSliceBytes / 16;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kOperands; i += kThreads) {
    auto* to = reinterpret_cast<uint4*>(unit.place(i / kOperands, packed, kPlainSliceBytes));
    to[i % kOperands] = operand_of(unit, i / 64, i % 32, i / 32 % 2);
  }
}

__device__ void pack_codes(const PackJob& job, const Unit& unit, char* packed) {
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kOperands = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kOperands; i += kThreads) {
    char* const slice = unit.place(i / kOperands, packed, kFp8SliceBytes);
    const int lane = i % 32;
    uint32_t words[4];
    for (int j = 0; j < 2; ++j) {
      const uint32_t upper = unit.codes(lane / 4, i / 32, lane % 4, j);
      const uint32_t lower = unit.codes(lane / 4 + 8, i / 32, lane % 4, j);
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
          unit.scale(row, job.fold == 0 ? i / kOperands * 2 + half : 0);
    }
  }
}

/// What is not there is zero: its codes are.
__device__ void pack_mx(const PackJob& job, const Unit& unit, const char* arena, char* packed) {
  const auto slices = static_cast<int>(slices_of(job.k));
  constexpr int kLanes = kSliceGroups * 32;
  char* const from = const_cast<char*>(arena);
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kThreads) {
    char* const slice = unit.place(i / kLanes, packed, kMxSliceBytes);
    const int lane = i % 32;
    const int group = i / 32;
    const auto scale = [&](int row) {
      const uint8_t* place = unit.mx_scale_of(row, group, from);
      return place != nullptr ? uint32_t{*place} : 0;
    };
    const auto word = [&](int row) {
      const uint32_t* place = unit.mx_codes_of(row, group, lane % 4, from);
      const uint32_t codes = place != nullptr && mx_has_codes(scale(row)) ? *place : 0;
      uint32_t all = 0;
      for (int pair = 0; pair < 4; ++pair) {
        all |= mx_placed(codes >> (8 * pair) & 15, pair) |
               mx_placed(codes >> (8 * pair + 4) & 15, pair) << 16;
      }
      return all;
    };
    const int of_slice = group % kSliceGroups;
    reinterpret_cast<uint2*>(slice + kSliceHeaderBytes + of_slice * kMxGroupBytes)[lane] = {
        word(lane / 4), word(lane / 4 + 8)};
    if (lane < kUnitColumns) {
      slice[mx_scale_place(lane, of_slice)] = static_cast<char>(mx_kept_scale(scale(lane)));
    }
  }
}

__device__ void compress(const PackJob& job, const Unit& unit, char* packed, uint32_t* refused) {
  __shared__ int counts[kUnitColumns][256];  // of exponents; of 0 zeros alone
  __shared__ int firsts[kUnitColumns];
  __shared__ uint32_t list[kMostListed];
  __shared__ int listed_count;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kUnitColumns * 256; i += kThreads) {
    (&counts[0][0])[i] = 0;
  }
  __syncthreads();
  const int columns = unit.columns();
  for (int column = 0; column < columns; ++column) {
    for (int k = 4 * thread; k < job.k; k += 4 * kThreads) {
      const uint2 quad = unit.of_column(column, k);
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
    firsts[thread] = best_window(counts[thread], job.k);
  }
  __syncthreads();

  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  for (int slice = 0; slice < slices; ++slice) {
    char* const to = unit.place(slice, packed, kCompressedSliceBytes);
    if (thread == 0) {
      listed_count = 0;
    }
    __syncthreads();
    const int lane = thread % 32;
    const int of_slice = thread / 32;
    const int group = slice * kSliceGroups + of_slice;
    // `k`: of the group.
    const auto coded = [&](uint32_t weight, int row, int k) -> uint32_t {
      const int first = firsts[unit.column_of(row)];
      if (!unit.has(row, unit.k_of(row, group) + k) || first == 0) {
        return kWindowBits;  // multiplied by zero, or scaled to it
      }
      if (in_window(weight, first)) {
        return move_to_window(weight, first);
      }
      const int place = atomicAdd(&listed_count, 1);
      if (place >= kMostListed || !can_be_listed(weight, first)) {
        atomicExch(refused, 1u);
      } else {
        list[place] = listed(row, of_slice * kGroupK + k, move_listed(weight, first));
      }
      return kWindowBits;
    };
    static_assert(kThreads == kSliceGroups * 32);
    uint32_t low[4] = {};
    uint32_t high[2] = {};
    for (int j = 0; j < 2; ++j) {
      const uint4 operand = operand_of(unit, group, lane, j);
      const uint32_t registers[4] = {operand.x, operand.y, operand.z, operand.w};
      for (int number = 0; number < 4; ++number) {
        const int row = lane / 4 + number % 2 * 8;
        const int k = lane % 4 * 8 + j * 4 + number / 2 * 2;
        const uint32_t first = coded(registers[number] & 0xffff, row, k);
        const uint32_t second = coded(registers[number] >> 16, row, k + 1);
        low[2 * j + number / 2] |= (low_part(first) | low_part(second) << 8) << (number % 2 * 16);
        high[j] |= high_parts(first | second << 16, number);
      }
    }
    char* const of_group = to + kSliceHeaderBytes + of_slice * kCompressedGroupBytes;
    reinterpret_cast<uint4*>(of_group)[lane] = {low[0], low[1], low[2], low[3]};
    reinterpret_cast<uint2*>(of_group + kLowBytes)[lane] = {high[0], high[1]};
    __syncthreads();
    if (thread < kUnitColumns) {
      const int first = firsts[unit.column_of(thread)];
      to[thread] = static_cast<char>(first == 0 ? kZeroScale : scale_exponent(first));
    }
    const int count = min(listed_count, kMostListed);
    if (thread < kMostListed) {
      // In order of their places: the sums' bits repeat.
      int place = 0;
      for (int i = 0; i < count && thread < count; ++i) {
        place += list[i] < list[thread] ? 1 : 0;
      }
      reinterpret_cast<uint32_t*>(to + kUnitColumns)[thread < count ? place : thread] =
          thread < count ? list[thread] : 0;
    }
    __syncthreads();
  }
}

/// What a code stands for, as products of the resident kernel have it.
__device__ float number_of(uint32_t code) {
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const uint32_t* codes, const float* scales, ScaleGrid grid, int64_t rows,
                 int row_quads, T* out) {
  const int64_t quads = rows * row_quads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < quads;
       i += int64_t{kThreads} * gridDim.x) {
    const int64_t row = i / row_quads;
    const float scale = scales[grid.index(row, (i - row * row_quads) * 4 / kScaleBlock)];
    const uint32_t four = codes[i];
    const float x[4] = {scale * number_of(four & 0xff), scale * number_of(four >> 8 & 0xff),
                        scale * number_of(four >> 16 & 0xff), scale * number_of(four >> 24)};
    store_four(x, out + 4 * i);
  }
  // Before the block ends: the next kernel may begin then, and its copies read at once.
  __threadfence();
  asm volatile("fence.proxy.async;" ::: "memory");
}

/// Eight elements of a row's group, from 8 t on, to where they lie in the arena.
__device__ void put(const Unit& unit, int row, int group, int t, uint4 eight, char* arena) {
  if (auto* place = unit.place_of<uint16_t>(row, group, 8 * t, arena); place != nullptr) {
    *reinterpret_cast<uint4*>(place) = eight;
  }
}

__device__ void unpack_plain(const PackJob& job, const Unit& unit, const char* packed,
                             char* arena) {
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kThreads) {
    const auto* from = reinterpret_cast<const uint4*>(
        packed + unit.offset(i / kLanes, kPlainSliceBytes) + i % kLanes / 32 * kGroupBytes);
    const int lane = i % 32;
    const uint4 first = from[lane];
    const uint4 second = from[lane + 32];
    put(unit, lane / 4, i / 32, lane % 4, {first.x, first.z, second.x, second.z}, arena);
    put(unit, lane / 4 + 8, i / 32, lane % 4, {first.y, first.w, second.y, second.w}, arena);
  }
}

__device__ void unpack_codes(const PackJob& job, const Unit& unit, const char* packed,
                             char* arena) {
  const auto slices = static_cast<int>(unit_slices(job.k, job.fold));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kThreads) {
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

__device__ void unpack_mx(const PackJob& job, const Unit& unit, const char* packed, char* arena) {
  const auto slices = static_cast<int>(slices_of(job.k));
  constexpr int kLanes = kSliceGroups * 32;
  for (int i = static_cast<int>(threadIdx.x); i < slices * kLanes; i += kThreads) {
    const char* const slice = packed + unit.offset(i / kLanes, kMxSliceBytes);
    const int lane = i % 32;
    const int group = i / 32;
    const int of_slice = group % kSliceGroups;
    const uint2 words =
        reinterpret_cast<const uint2*>(slice + kSliceHeaderBytes + of_slice * kMxGroupBytes)[lane];
    const auto put_eight = [&](int row, uint32_t word) {
      uint32_t codes = 0;
      for (int pair = 0; pair < 4; ++pair) {
        codes |= mx_codes(mx_pair(word, pair)) << (8 * pair);
      }
      if (auto* place = unit.mx_codes_of(row, group, lane % 4, arena); place != nullptr) {
        *place = codes;
      }
    };
    put_eight(lane / 4, words.x);
    put_eight(lane / 4 + 8, words.y);
    if (lane < kUnitColumns) {
      if (auto* place = unit.mx_scale_of(lane, group, arena); place != nullptr) {
        *place = static_cast<uint8_t>(slice[mx_scale_place(lane, of_slice)]);
      }
    }
  }
}

/// A unit's compressed slices come through shared memory, so that memory is read and written in
/// whole lines: a warp stores a slice of one row, then of the row eight below.
__device__ void decompress(const PackJob& job, const Unit& unit, const char* packed, char* arena) {
  constexpr int kAtOnce = 3;  // slices that are waited for together; twice as many are on their way
  __shared__ alignas(128) char staged[2][kAtOnce][kCompressedSliceBytes];
  __shared__ Barrier there[2];
  static_assert(kThreads == kUnitColumns / 2 * 32 && kSliceK == 256 && kMostListed <= 32);
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
      // As compress() has it: of pairs 0 to 3 of each half of the eight, the even ones are of the
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

/// A block a unit.
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const PackJob* jobs, const char* packed, char* arena) {
  const PackJob job = jobs[blockIdx.x];
  const Unit unit(job, arena);
  if (job.form == StreamForm::fp8) {
    unpack_codes(job, unit, packed, arena);
  } else if (job.form == StreamForm::compressed) {
    decompress(job, unit, packed, arena);
  } else if (job.form == StreamForm::mx) {
    unpack_mx(job, unit, packed, arena);
  } else {
    unpack_plain(job, unit, packed, arena);
  }
}

/// A block a unit.
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const PackJob* jobs, const char* arena, char* packed, uint32_t* refused) {
  const PackJob job = jobs[blockIdx.x];
  const Unit unit(job, arena);
  if (job.form == StreamForm::fp8) {
    pack_codes(job, unit, packed);
  } else if (job.form == StreamForm::compressed) {
    compress(job, unit, packed, refused + job.operation);
  } else if (job.form == StreamForm::mx) {
    pack_mx(job, unit, arena, packed);
  } else {
    pack_plain(job, unit, packed);
  }
}

}  // namespace

cudaError_t launch_fill_random(const RandomTensor& tensor, DType type, int64_t elements, void* out,
                               cudaStream_t stream) {
  const int64_t groups = elements / 4;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(65536, (groups + kThreads - 1) / kThreads));
  const auto fill = [&](auto* to) {
    fill_random_kernel<<<blocks, kThreads, 0, stream>>>(tensor, groups, to);
  };
  if (type == DType::bf16) {
    fill(static_cast<__nv_bfloat16*>(out));
  } else if (type == DType::f16) {
    fill(static_cast<__half*>(out));
  } else if (type == DType::e4m3fn) {
    fill(static_cast<__nv_fp8_e4m3*>(out));
  } else {
    fill(static_cast<float*>(out));
  }
  return cudaGetLastError();
}

cudaError_t launch_unpack(const PackJob* jobs, int64_t count, const char* packed, char* arena,
                          cudaStream_t stream) {
  unpack_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(jobs, packed, arena);
  return cudaGetLastError();
}

cudaError_t launch_pack(const PackJob* jobs, int64_t count, const char* arena, char* packed,
                        uint32_t* refused, cudaStream_t stream) {
  pack_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(jobs, arena, packed, refused);
  return cudaGetLastError();
}

cudaError_t launch_widen(const void* codes, const float* scales, const ScaleGrid& grid,
                         int64_t rows, int64_t columns, DType type, void* out,
                         cudaStream_t stream) {
  const int64_t quads = rows * columns / 4;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(4096, (quads + kThreads - 1) / kThreads));
  const auto widen = [&](auto* to) {
    widen_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint32_t*>(codes), scales, grid,
                                                  rows, static_cast<int>(columns / 4), to);
  };
  if (type == DType::bf16) {
    widen(static_cast<__nv_bfloat16*>(out));
  } else {
    widen(static_cast<float*>(out));
  }
  return cudaGetLastError();
}

}  // namespace weft::hopper
