// Products of each head with its own weights, on sm_90a's tensor cores: a block for some rows and
// columns of a head, weights in bf16.
#pragma once

#include "arch/hopper/attention.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/resident.cuh"
#include "base/divide.h"
#include "ops/matrix.h"

namespace weft::hopper {

__device__ inline float2 load_pair(const float* from) {
  return *reinterpret_cast<const float2*>(from);
}
__device__ inline void store_pair(void* to, DType type, int64_t at, float2 x) {
  if (type == DType::f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(to) + at) = x;
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(to) + at) = pack_bf16x2(x.x, x.y);
  }
}

/// What a head's product is of: out[row, head] = a[row, head] * w[head]^T, or * w[head].
struct HeadProduct {
  const float* a = nullptr;  ///< [rows][a_stride], of a head from head * a_pitch on: k elements
  int64_t a_stride = 0;
  int64_t a_pitch = 0;
  ConstMatrix w;        ///< of a head from row head * w_pitch on: [n, k] or, transposed, [k, n]
  int64_t w_pitch = 0;  ///< rows
  int n = 0;
  int k = 0;
  Matrix out;  ///< of a head from column head * out_pitch on
  int64_t out_pitch = 0;
  int rows = 0;
};
/// A tile of the result. Rows are multiplied as two bf16 each, so that they lose nothing that
/// counts beside the result's rounding.
template <int kRowCount, int kColumnCount, bool kIsTransposed>
struct HeadTile {
  static constexpr bool kTransposed = kIsTransposed;
  static constexpr int kRows = kRowCount;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kDepth = 64;
  static constexpr int kThreads = 128;
  static constexpr int kStages = 3;
  /// Elements: what a warp reads lies in banks apart.
  static constexpr int kRowStride = kDepth + 8;
  static constexpr int kWarpColumns = kRows == 16 ? kColumns / 4 : kColumns;
  static constexpr int kTiles = kWarpColumns / 8;
  static constexpr int kRowBytesAll = kRows * kRowStride * 4;
  static constexpr int kStageBytes = kRowBytesAll + kColumns * kRowBytes;
  static_assert(kDepth * 2 == kRowBytes && kColumns % 64 == 0 && kTiles % 2 == 0);

  /// Where 16 bytes of a row of weights are: one of k in the result's columns, by 64 of these, or
  /// one of the columns in k.
  __device__ static int at(int row, int piece) {
    const int line = row + piece / 8 * kDepth;
    return line * kRowBytes + ((piece % 8 ^ row % 8) * 16);
  }
};

/// Two f32 as bf16, and what that leaves: nothing of an infinity.
struct Parts {
  uint32_t upper, lower;
};
__device__ inline Parts parts_of(float2 x) {
  const uint32_t upper = pack_bf16x2(x.x, x.y);
  const float2 rest{x.x - bf16_low(upper), x.y - bf16_high(upper)};
  return {upper, pack_bf16x2(isfinite(rest.x) ? rest.x : 0, isfinite(rest.y) ? rest.y : 0)};
}

/// `beside`: blocks behind the last columns call beside(p, head, first row, rows).
template <class T, class Beside>
__global__ void __launch_bounds__(T::kThreads)
    multiply_heads(const __grid_constant__ HeadProduct p, const __grid_constant__ Beside beside) {
  begin_in_turn();
  extern __shared__ __align__(128) char memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int head = static_cast<int>(blockIdx.y);
  const int first_row = static_cast<int>(blockIdx.z) * T::kRows;
  const int first_column = static_cast<int>(blockIdx.x) * T::kColumns;
  if (first_column >= p.n) {
    beside(p, head, first_row, min(T::kRows, p.rows - first_row));
    return;
  }
  const float* const a = p.a + head * p.a_pitch;
  const auto* const w = static_cast<const uint16_t*>(p.w.data) + head * p.w_pitch * p.w.stride;
  const int steps = ceil_div(p.k, T::kDepth);
  const auto copy = [&](int step) {
    if (step < steps) {
      char* const stage = memory + step % T::kStages * T::kStageBytes;
      constexpr int kRowPieces = T::kDepth / 4;
#pragma unroll
      for (int i = thread; i < T::kRows * kRowPieces; i += T::kThreads) {
        const int row = i / kRowPieces;
        const int along_row = i % kRowPieces * 4;
        const int at = step * T::kDepth + along_row;
        const bool there = first_row + row < p.rows && at < p.k;
        copy_async_16(stage + (row * T::kRowStride + along_row) * 4,
                      a + (there ? (first_row + row) * p.a_stride + at : 0), there);
      }
#pragma unroll
      for (int i = thread; i < T::kColumns * 8; i += T::kThreads) {
        // A row of the stage is one of k, or of the result's columns.
        constexpr int kPieces = T::kTransposed ? T::kColumns / 8 : T::kDepth / 8;
        const int along_row = i % kPieces * 8;
        const int row = (T::kTransposed ? step * T::kDepth : first_column) + i / kPieces;
        const int column = (T::kTransposed ? first_column : step * T::kDepth) + along_row;
        const bool there =
            row < (T::kTransposed ? p.k : p.n) && column < (T::kTransposed ? p.n : p.k);
        copy_async_16(stage + T::kRowBytesAll + T::at(i / kPieces, i % kPieces),
                      w + (there ? row * p.w.stride + column : 0), there);
      }
    }
    commit_copies();
  };

  float sums[T::kTiles][4] = {};
  const int warp_row = T::kRows == 16 ? 0 : warp * 16;
  const int warp_column = T::kRows == 16 ? warp * T::kWarpColumns : 0;
  for (int step = 0; step < T::kStages - 1; ++step) {
    copy(step);
  }
  for (int step = 0; step < steps; ++step) {
    await_copies<T::kStages - 2>();
    __syncthreads();
    copy(step + T::kStages - 1);
    const char* const stage = memory + step % T::kStages * T::kStageBytes;
    const auto* const rows = reinterpret_cast<const float*>(stage) + warp_row * T::kRowStride;
    const uint32_t weights = smem_address(stage + T::kRowBytesAll);
#pragma unroll
    for (int k = 0; k < T::kDepth; k += 16) {
      const auto pair = [&](int row, int column) {
        return parts_of(
            load_pair(rows + (row + lane / 4) * T::kRowStride + k + column + lane % 4 * 2));
      };
      const Parts x[4] = {pair(0, 0), pair(8, 0), pair(0, 8), pair(8, 8)};
      const uint4 upper{x[0].upper, x[1].upper, x[2].upper, x[3].upper};
      const uint4 lower{x[0].lower, x[1].lower, x[2].lower, x[3].lower};
#pragma unroll
      for (int j = 0; j < T::kTiles; j += 2) {
        uint4 b;
        if constexpr (T::kTransposed) {
          const int row = k + lane / 8 % 2 * 8 + lane % 8;
          b = load_transposed_x4(weights + T::at(row, warp_column / 8 + j + lane / 16));
        } else {
          const int row = warp_column + (j + lane / 16) * 8 + lane % 8;
          b = load_matrices_x4(weights + T::at(row, k / 8 + lane / 8 % 2));
        }
        mma_bf16(sums[j], upper, b.x, b.y);
        mma_bf16(sums[j], lower, b.x, b.y);
        mma_bf16(sums[j + 1], upper, b.z, b.w);
        mma_bf16(sums[j + 1], lower, b.z, b.w);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + warp_row + half * 8 + lane / 4;
    if (row >= p.rows) {
      continue;
    }
#pragma unroll
    for (int j = 0; j < T::kTiles; ++j) {
      const int column = first_column + warp_column + j * 8 + lane % 4 * 2;
      if (column < p.n) {
        store_pair(p.out.data, p.out.dtype, row * p.out.stride + head * p.out_pitch + column,
                   {sums[j][2 * half], sums[j][2 * half + 1]});
      }
    }
  }
}

/// Of `heads` heads; `has_beside`: there is something beside their columns.
template <class T, class Beside>
Status launch_heads_tile(const HeadProduct& p, const Beside& beside, bool has_beside, int heads,
                         cudaStream_t stream) {
  return launch_kernel(multiply_heads<T, Beside>,
                       {.blocks = ceil_div(p.n, T::kColumns) + (has_beside ? 1 : 0),
                        .blocks_y = heads,
                        .blocks_z = ceil_div(p.rows, T::kRows),
                        .threads = T::kThreads,
                        .shared_bytes = T::kStages * T::kStageBytes,
                        .overlaps = true,
                        .stream = stream},
                       p, beside);
}

}  // namespace weft::hopper
