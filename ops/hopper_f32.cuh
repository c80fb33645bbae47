// Operations in f32 on sm_90a, for prompts whose activations are not to be rounded to bf16: numbers
// four at a time from either format, and products on the CUDA cores, whose sums are as precise as
// the CPU's: each one chain of multiply-adds in the order of k.
#pragma once

#include <cstdint>

#include "arch/hopper/copy.cuh"
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
__device__ inline float4 widen(uint2 v) {
  return {__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000), __uint_as_float(v.y << 16),
          __uint_as_float(v.y & 0xffff0000)};
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
/// Element i of an f32 or bf16 array, or 0 where there is none.
__device__ inline float load_or_zero(const ConstVector& vector, int64_t i) {
  if (vector.data == nullptr) {
    return 0;
  }
  return vector.dtype == DType::f32
             ? static_cast<const float*>(vector.data)[i]
             : __uint_as_float(uint32_t{static_cast<const uint16_t*>(vector.data)[i]} << 16);
}

/// sum + a . b, in order.
__device__ inline float dot_x4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

/// A block's share of a product: kRows rows of a by one or two groups of kColumns rows of weights.
/// A thread has the sums of rows lane_row() + 8 i and, in each group, of columns lane_column() +
/// 16 j: lanes then find their operands in banks apart, since rows in shared memory are 4 longer
/// than the elements of k that are there at a time.
struct F32Tile {
  static constexpr int kRows = 64;
  static constexpr int kColumns = 32;
  static constexpr int kThreads = 128;
  static constexpr int kDepth = 32;  ///< elements of k at a time
  static constexpr int kStride = kDepth + 4;
  static constexpr int kThreadRows = kRows / 8;
  static constexpr int kThreadColumns = kColumns / 16;  ///< of a group

  __device__ static int lane_row() { return static_cast<int>(threadIdx.x) / 16; }
  __device__ static int lane_column() { return static_cast<int>(threadIdx.x) % 16; }
};

/// Rows [first, first + kColumns) of w.
struct F32Group {
  ConstMatrix w;
  int64_t first = 0;
};

/// sums[i][2 g + j] (see F32Tile): rows [row, row + kRows) of a, which is f32 and has `rows`, times
/// group g of weights, which are Quads and of which there are n rows. k and all strides are
/// multiples of 4. By the whole block, once.
template <class Quad, int kGroups>
__device__ __forceinline__ void multiply_f32(
    const ConstMatrix& a, int64_t row, int64_t rows, const F32Group (&groups)[kGroups], int64_t n,
    int64_t k, float (&sums)[F32Tile::kThreadRows][F32Tile::kThreadColumns * kGroups]) {
  using T = F32Tile;
  __shared__ __align__(16) float a_tile[2][T::kRows][T::kStride];
  __shared__ __align__(16) float w_tile[2][kGroups * T::kColumns][T::kStride];
  // A thread brings four neighbours along k of every kLoadRows-th row.
  constexpr int kLanes = T::kDepth / 4;
  constexpr int kLoadRows = T::kThreads / kLanes;
  constexpr int kLoadsA = T::kRows / kLoadRows;
  constexpr int kLoadsW = T::kColumns / kLoadRows;  // of a group
  static_assert(T::kColumns % kLoadRows == 0);
  const int r = static_cast<int>(threadIdx.x) / kLanes;
  const int q = static_cast<int>(threadIdx.x) % kLanes * 4;
  float4 next_a[kLoadsA];
  Quad next_w[kGroups][kLoadsW];
  const auto fetch = [&](int64_t at) {
    const int64_t x = at + q;
#pragma unroll
    for (int i = 0; i < kLoadsA; ++i) {
      const int64_t y = row + r + i * kLoadRows;
      next_a[i] = y < rows && x < k ? load_quad<float4>(a.data, y * a.stride + x) : float4{};
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kLoadsW; ++i) {
        const int64_t y = groups[g].first + r + i * kLoadRows;
        const ConstMatrix& w = groups[g].w;
        next_w[g][i] = y < n && x < k ? load_quad<Quad>(w.data, y * w.stride + x) : Quad{};
      }
    }
  };
  const auto put = [&](int slot) {
#pragma unroll
    for (int i = 0; i < kLoadsA; ++i) {
      *reinterpret_cast<float4*>(&a_tile[slot][r + i * kLoadRows][q]) = next_a[i];
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kLoadsW; ++i) {
        *reinterpret_cast<float4*>(&w_tile[slot][g * T::kColumns + r + i * kLoadRows][q]) =
            widen(next_w[g][i]);
      }
    }
  };

#pragma unroll
  for (auto& of_row : sums) {
#pragma unroll
    for (float& sum : of_row) {
      sum = 0;
    }
  }
  fetch(0);
  put(0);
  __syncthreads();
  int slot = 0;
  for (int64_t at = 0; at < k; at += T::kDepth, slot ^= 1) {
    const bool more = at + T::kDepth < k;
    if (more) {
      fetch(at + T::kDepth);  // arrives under this step's products
    }
#pragma unroll
    for (int d = 0; d < T::kDepth; d += 4) {
      float4 w[T::kThreadColumns * kGroups];
#pragma unroll
      for (int j = 0; j < T::kThreadColumns * kGroups; ++j) {
        w[j] = *reinterpret_cast<const float4*>(&w_tile[slot][T::lane_column() + 16 * j][d]);
      }
#pragma unroll
      for (int i = 0; i < T::kThreadRows; ++i) {
        const float4 x = *reinterpret_cast<const float4*>(&a_tile[slot][T::lane_row() + 8 * i][d]);
#pragma unroll
        for (int j = 0; j < T::kThreadColumns * kGroups; ++j) {
          sums[i][j] = dot_x4(x, w[j], sums[i][j]);
        }
      }
    }
    if (more) {
      put(slot ^ 1);
    }
    __syncthreads();
  }
}

/// Calls f(i, j, row, column) for every element of the output [rows, n] whose sum a thread has in
/// sums[i][j], of groups whose rows follow one another from `column` on.
template <int kGroups, class F>
__device__ __forceinline__ void each_f32(int64_t row, int64_t rows, int64_t column, int64_t n,
                                         const F& f) {
  using T = F32Tile;
#pragma unroll
  for (int i = 0; i < T::kThreadRows; ++i) {
#pragma unroll
    for (int j = 0; j < T::kThreadColumns * kGroups; ++j) {
      const int64_t r = row + T::lane_row() + 8 * i;
      const int64_t c = column + T::lane_column() + 16 * j;
      if (r < rows && c < n) {
        f(i, j, r, c);
      }
    }
  }
}

}  // namespace weft::hopper
