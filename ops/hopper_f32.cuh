// Operations in f32 on sm_90a, for prompts whose activations are not to be rounded to bf16: numbers
// four at a time from either format, and products on the CUDA cores, whose sums are as precise as
// the CPU's: each one chain of multiply-adds in the order of k.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "arch/hopper/copy.cuh"
#include "arch/hopper/resident.cuh"
#include "base/result.h"
#include "ops/matrix.h"

namespace weft::hopper {

/// Four numbers as they lie in memory: float4, or uint2 for bf16. What is loaded in a loop is
/// widened after it: a choice of format beside each load would wait for it.
template <class Quad>
__device__ Quad load_quad(const void* data, int64_t i) {
  return *reinterpret_cast<const Quad*>(static_cast<const char*>(data) +
                                        i * static_cast<int64_t>(sizeof(Quad) / 4));
}
__device__ inline float4 widen(float4 v) { return v; }
__device__ inline float4 widen(uint2 v) { return widen4(v); }
__device__ inline void store_x1(void* data, DType type, int64_t i, float x) {
  if (type == DType::f32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(pack_bf16x2(x, 0));
  }
}
/// To elements i .. i + 3 of an f32 or bf16 array, aligned to all four.
__device__ inline void store_x4(void* data, DType type, int64_t i, float4 v) {
  if (type == DType::f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + i) = v;
  } else {
    *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + i) = {pack_bf16x2(v.x, v.y),
                                                                   pack_bf16x2(v.z, v.w)};
  }
}

// Weights in the formats of checkpoints: float, uint16_t (bf16) and __half.

/// Calls f with a number of the format.
template <class F>
Status with_weights(DType type, const F& f) {
  switch (type) {
    case DType::bf16:
      return f(uint16_t{});
    case DType::f16:
      return f(__half{});
    default:
      return f(float{});
  }
}
__device__ inline float4 widen_half(uint2 v) {
  const float2 low = __half22float2(reinterpret_cast<const __half2&>(v.x));
  const float2 high = __half22float2(reinterpret_cast<const __half2&>(v.y));
  return {low.x, low.y, high.x, high.y};
}
/// Four numbers of an array, aligned to all four.
__device__ inline float4 read_x4(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
__device__ inline float4 read_x4(const uint16_t* from) {
  return widen(*reinterpret_cast<const uint2*>(from));
}
__device__ inline float4 read_x4(const __half* from) {
  return widen_half(*reinterpret_cast<const uint2*>(from));
}
/// To elements i .. i + 7 of a bf16 array, aligned to 16 bytes.
__device__ inline void store_bf16_x8(void* data, int64_t i, const float4 (&v)[2]) {
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(data) + i) = {
      pack_bf16x2(v[0].x, v[0].y), pack_bf16x2(v[0].z, v[0].w), pack_bf16x2(v[1].x, v[1].y),
      pack_bf16x2(v[1].z, v[1].w)};
}
/// Eight numbers of an array, aligned to 16 bytes.
__device__ inline void read_x8(const float* from, float4 (&to)[2]) {
  to[0] = read_x4(from);
  to[1] = read_x4(from + 4);
}
__device__ inline void read_x8(const uint16_t* from, float4 (&to)[2]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  to[0] = widen(uint2{v.x, v.y});
  to[1] = widen(uint2{v.z, v.w});
}
__device__ inline void read_x8(const __half* from, float4 (&to)[2]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  to[0] = widen_half({v.x, v.y});
  to[1] = widen_half({v.z, v.w});
}
__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(uint16_t bf16_bits) {
  return __uint_as_float(uint32_t{bf16_bits} << 16);
}
__device__ inline float to_f32(__half x) { return __half2float(x); }
/// Element i of a vector in any of them.
__device__ inline float load_x1(const ConstVector& v, int64_t i) {
  switch (v.dtype) {
    case DType::f32:
      return static_cast<const float*>(v.data)[i];
    case DType::f16:
      return to_f32(static_cast<const __half*>(v.data)[i]);
    default:
      return to_f32(static_cast<const uint16_t*>(v.data)[i]);
  }
}

/// sum + a . b, in order.
__device__ inline float dot_x4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// A block's share of a product: kRows rows of a by one or two groups of kColumns rows of weights.
/// A thread has the sums of rows lane_row() + 8 i and, in each group, of columns lane_column() +
/// 16 j: lanes then find their operands in banks apart, since rows in shared memory are 16 bytes
/// longer than the elements of k that are there at a time.
struct F32Tile {
  static constexpr int kRows = 64;
  static constexpr int kColumns = 32;
  static constexpr int kThreads = 128;
  static constexpr int kDepth = 32;  ///< elements of k at a time
  static constexpr int kThreadRows = kRows / 8;
  static constexpr int kThreadColumns = kColumns / 16;  ///< of a group
  template <class T>
  static constexpr int kStride = kDepth + 16 / static_cast<int>(sizeof(T));

  __device__ static int lane_row() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int lane_column() { return static_cast<int>(threadIdx.x) % 16; }
};

/// Rows [first, first + kColumns) of w.
struct F32Group {
  ConstMatrix w;
  int64_t first = 0;
  const uint8_t* scales = nullptr;  ///< of codes that have such
};

/// Where in the matrix a row is.
struct InOrder {
  __device__ int64_t operator()(int64_t row) const { return row; }
};

/// Copies elements [at, at + kDepth) of k of matrix rows [first, first + kCount) beside the
/// threads; what lies outside `rows` and k becomes 0. Only those in `rows` are asked of `place`.
template <class T, int kCount, class Place>
__device__ __forceinline__ void copy_rows_async(T (*to)[F32Tile::kStride<T>],
                                                const ConstMatrix& from, int64_t first,
                                                int64_t rows, int64_t at, int64_t k,
                                                const Place& place) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T));  // elements of a copy
  constexpr int kLanes = F32Tile::kDepth / kPiece;          // threads of a row
  constexpr int kStep = F32Tile::kThreads / kLanes;
  static_assert(kCount % kStep == 0);
  const int c = static_cast<int>(threadIdx.x) % kLanes * kPiece;
#pragma unroll
  for (int r = static_cast<int>(threadIdx.x) / kLanes, i = 0; i < kCount / kStep; ++i, r += kStep) {
    const int64_t row = first + r < rows ? place(first + r) : 0;
    copy_async_16(&to[r][c], static_cast<const T*>(from.data) + row * from.stride + at + c,
                  first + r < rows && at + c < k);
  }
}

/// How weights in a format lie in shared memory.
template <class W>
struct F32Weights {
  using Row = W[F32Tile::kStride<W>];  ///< kDepth elements
  /// As copy_rows_async().
  template <int kCount>
  __device__ __forceinline__ static void copy(Row* to, const F32Group& group, int64_t n, int64_t at,
                                              int64_t k) {
    copy_rows_async<W, kCount>(to, group.w, group.first, n, at, k, InOrder{});
  }
  /// Elements d .. d + 7, d a multiple of 8.
  __device__ __forceinline__ static void read(const Row& row, int d, float4 (&to)[2]) {
    read_x8(&row[d], to);
  }
};

/// sums[i][2 g + j] (see F32Tile): rows [row, row + kRows) of a, which is f32 and has `rows`, times
/// group g of weights, which are Ws (see above) and of which there are n rows. k and all strides
/// are multiples of 8. By the whole block; once, or after a barrier. `place`: see copy_rows_async.
template <class W, int kGroups, class Place = InOrder>
__device__ __forceinline__ void multiply_f32(
    const ConstMatrix& a, int64_t row, int64_t rows, const F32Group (&groups)[kGroups], int64_t n,
    int64_t k, float (&sums)[F32Tile::kThreadRows][F32Tile::kThreadColumns * kGroups],
    const Place& place = {}) {
  using T = F32Tile;
  constexpr int kThreadColumns = T::kThreadColumns * kGroups;
  __shared__ __align__(16) float a_tile[2][T::kRows][T::kStride<float>];
  __shared__ __align__(16) typename F32Weights<W>::Row w_tile[2][kGroups * T::kColumns];
  const auto copy = [&](int slot, int64_t at) {
    copy_rows_async<float, T::kRows>(a_tile[slot], a, row, rows, at, k, place);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      F32Weights<W>::template copy<T::kColumns>(w_tile[slot] + g * T::kColumns, groups[g], n, at,
                                                k);
    }
    commit_copies();
  };

#pragma unroll
  for (auto& of_row : sums) {
#pragma unroll
    for (float& sum : of_row) {
      sum = 0;
    }
  }
  copy(0, 0);
  int slot = 0;
  for (int64_t at = 0; at < k; at += T::kDepth, slot ^= 1) {
    await_copies<0>();
    __syncthreads();  // all copies are here, and the other slot has been read
    if (at + T::kDepth < k) {
      copy(slot ^ 1, at + T::kDepth);
    }
#pragma unroll
    for (int d = 0; d < T::kDepth; d += 8) {
      float4 w[kThreadColumns][2];
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) {
        F32Weights<W>::read(w_tile[slot][T::lane_column() + 16 * j], d, w[j]);
      }
#pragma unroll
      for (int i = 0; i < T::kThreadRows; ++i) {
        float4 x[2];
        read_x8(&a_tile[slot][T::lane_row() + 8 * i][d], x);
#pragma unroll
        for (int j = 0; j < kThreadColumns; ++j) {
          sums[i][j] = dot_x4(x[1], w[j][1], dot_x4(x[0], w[j][0], sums[i][j]));
        }
      }
    }
  }
}

/// What a thread's columns [column + lane_column() + 16 j] of a bias add; none: 0.
template <class W, int kCount>
__device__ __forceinline__ void load_bias(const ConstVector& bias, int64_t column, int64_t n,
                                          float (&values)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const int64_t c = column + F32Tile::lane_column() + 16 * j;
    values[j] = bias.data != nullptr && c < n ? to_f32(static_cast<const W*>(bias.data)[c]) : 0;
  }
}

/// Calls f(i, j, row, column) for what a thread has of the output [rows, n], whose columns follow
/// one another from `column` on.
template <int kThreadColumns, class F>
__device__ __forceinline__ void each_f32(int64_t row, int64_t rows, int64_t column, int64_t n,
                                         const F& f) {
#pragma unroll
  for (int i = 0; i < F32Tile::kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < kThreadColumns; ++j) {
      const int64_t r = row + F32Tile::lane_row() + 8 * i;
      const int64_t c = column + F32Tile::lane_column() + 16 * j;
      if (r < rows && c < n) {
        f(i, j, r, c);
      }
    }
  }
}

}  // namespace weft::hopper
