// What operations on rows share on sm_90a: 16 bytes of 16-bit numbers a thread and step, sums over
// a block or a cluster of blocks that has a row, and storing results in fp8 or 16 bits
// (ops/scales.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "ops/scales.h"

namespace weft::hopper {

inline constexpr int kChunk = 8;                          ///< numbers of a step
inline constexpr int kBlockLanes = kScaleBlock / kChunk;  ///< lanes that share a scale of a block

__device__ inline float2 widen(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ inline float2 widen(__half2 pair) { return __half22float2(pair); }
__device__ inline void narrow(float2 pair, __nv_bfloat162& to) { to = __float22bfloat162_rn(pair); }
__device__ inline void narrow(float2 pair, __half2& to) { to = __float22half2_rn(pair); }

/// Pairs of a 16-bit format.
template <class Pair>
union Packed {
  uint4 words;
  Pair pairs[kChunk / 2];
};

template <class Pair>
__device__ void unpack(const uint4& words, float (&values)[kChunk]) {
  Packed<Pair> packed;
  packed.words = words;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    const float2 pair = widen(packed.pairs[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}
template <class Pair>
__device__ uint4 pack(const float (&values)[kChunk]) {
  Packed<Pair> packed;
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    narrow({values[2 * i], values[2 * i + 1]}, packed.pairs[i]);
  }
  return packed.words;
}

/// What a block asks into L2 before it waits for the kernel before.
enum class Ahead : uint8_t {
  nothing,
  first,  ///< the first operand: while it is on its way, threads ask for the others
  all     ///< for few rows, whose time is the way from memory
};

/// By all threads of a block, first. The operands: of what each kernel reads `columns` numbers from
/// there on, or null.
template <class... Rest>
__device__ void begin_rows(Ahead ahead, int columns, const uint16_t* first, const Rest*... rest) {
  let_next_begin();
  if (ahead != Ahead::nothing && threadIdx.x == 0 && columns > 0) {
    const auto prefetch = [&](const uint16_t* from) {
      if (from != nullptr) {
        prefetch_bytes(from, columns * 2);
      }
    };
    prefetch(first);
    if (ahead == Ahead::all) {
      (prefetch(rest), ...);
    }
  }
  wait_for_earlier();
}

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
/// Passes over NaN.
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
/// A sum and a largest number.
struct SumAndLargest {
  __device__ float2 operator()(float2 a, float2 b) const { return {a.x + b.x, fmaxf(a.y, b.y)}; }
};

__device__ inline float shuffle_xor(float x, int distance) {
  return __shfl_xor_sync(~0u, x, distance);
}
__device__ inline float2 shuffle_xor(float2 x, int distance) {
  return {shuffle_xor(x.x, distance), shuffle_xor(x.y, distance)};
}

/// Over `lanes` neighbouring lanes, the same bits in each.
template <class T, class Combine>
__device__ T over_lanes(T x, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x = combine(x, shuffle_xor(x, distance));
  }
  return x;
}

/// Shared memory of a sum (or pair of sums) over a row, for one use.
template <class T>
struct RowSlots {
  T of_warps[32];
  T of_blocks[8];    ///< where blocks share a row: the others' sums
  Barrier gathered;  ///< all of them are there

  /// By the block's first thread, before it arrives at the cluster's barrier.
  __device__ void prepare() {
    gathered.init(1);
    fence_barriers();
  }
};

/// Over all threads of the `cluster` blocks that have a row, in a fixed order. Where there are
/// several, all have prepared their slots. Blocks send each other their sums with stores that count
/// at a barrier: the cluster's own barrier would wait for all stores to memory.
template <class T, class Combine>
__device__ T over_row(T x, int cluster, RowSlots<T>& slots, Combine combine) {
  x = over_lanes(x, 32, combine);
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) {
    slots.of_warps[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = slots.of_warps[0];
  for (int i = 1; i < warps; ++i) {
    x = combine(x, slots.of_warps[i]);
  }
  if (cluster > 1) {
    const int rank = static_cast<int>(cluster_rank());
    const int to = static_cast<int>(threadIdx.x);
    if (to < cluster && to != rank) {
      store_remote(cluster_address(smem_address(slots.of_blocks + rank), to), x,
                   cluster_address(smem_address(&slots.gathered), to));
    }
    if (threadIdx.x == 0) {
      slots.gathered.arrive_expect((cluster - 1) * sizeof(T));
    }
    slots.gathered.wait(0);
    const T own = x;
    x = rank == 0 ? own : slots.of_blocks[0];
    for (int i = 1; i < cluster; ++i) {
      x = combine(x, i == rank ? own : slots.of_blocks[i]);
    }
  }
  return x;
}

/// Where results go; strides in elements.
struct RowOut {
  void* data = nullptr;
  int64_t stride = 0;
  Scaling scaling = Scaling::none;
  float* scales = nullptr;
  int64_t scale_row = 0;
  int64_t scale_block = 0;
};
inline RowOut row_out(const Quantised& y) {
  return {y.out.data,    y.out.stride,        y.scaling,
          y.scales.data, y.scales.row_stride, y.scales.block_stride};
}

inline constexpr float kFp8Most = 448;
/// Within 2 units in the last place, and without the branch that a division has.
__device__ inline float reciprocal_of(float x) { return __fdividef(1, x); }
__device__ inline float scale_of(float largest) {
  return fmaxf(largest, kLeastAmax) * (1 / kFp8Most);
}

/// Stores a chunk in fp8, by the reciprocal of its scale.
__device__ inline void store_fp8(const RowOut& out, int64_t row, int column,
                                 const float (&values)[kChunk], float reciprocal) {
  uint2 codes;
  auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&codes);
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    pairs[i] = __nv_cvt_float2_to_fp8x2(
        {values[2 * i] * reciprocal, values[2 * i + 1] * reciprocal}, __NV_SATFINITE, __NV_E4M3);
  }
  *reinterpret_cast<uint2*>(static_cast<uint8_t*>(out.data) + row * out.stride + column) = codes;
}

__device__ inline float largest_of(const float (&values)[kChunk]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    largest = fmaxf(largest, fabsf(values[i]));
  }
  return largest;
}

/// Where a row has a scale: by its largest number, stored by one thread for which `chosen` is true.
/// Returns its reciprocal; chunks are then stored as with a tensor's.
__device__ inline float store_row_scale(const RowOut& out, int64_t row, float largest,
                                        bool chosen) {
  const float scale = scale_of(largest);
  const float reciprocal = reciprocal_of(scale);
  if (chosen) {
    out.scales[row * out.scale_row] = scale;
  }
  return reciprocal;
}

/// Stores a chunk of a row, but for Scaling::row. By all lanes of kBlockLanes neighbours, whose
/// chunks are neighbours too; those past the end of the row have `valid` false and zeros. Returns
/// the scale of the block, which store_scales() is for.
template <class Pair, Scaling kScaling>
__device__ float store_chunk(const RowOut& out, int64_t row, int column,
                             const float (&values)[kChunk], bool valid, float tensor_reciprocal) {
  float scale = 1;
  if constexpr (kScaling == Scaling::none) {
    if (valid) {
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(out.data) + row * out.stride + column) =
          pack<Pair>(values);
    }
  } else if constexpr (kScaling == Scaling::tensor) {
    if (valid) {
      store_fp8(out, row, column, values, tensor_reciprocal);
    }
  } else {
    scale = scale_of(over_lanes(largest_of(values), kBlockLanes, Largest{}));
    if (valid) {
      store_fp8(out, row, column, values, reciprocal_of(scale));
    }
  }
  return scale;
}

/// Stores the scales of a warp's blocks by one instruction: scales[i] are those of the chunks at
/// first + (i blockDim + thread) kChunk, the same in kBlockLanes neighbours. By all lanes.
template <int kSteps>
__device__ void store_scales(const RowOut& out, int64_t row, int first, int end,
                             const float (&scales)[kSteps]) {
  constexpr int kBlocks = 32 / kBlockLanes;  // of a warp's chunks of a step
  static_assert(kSteps * kBlocks <= 32);
  const int lane = threadIdx.x % 32;
  const int step = lane / kBlocks;
  const int begin = lane % kBlocks * kBlockLanes;
  float mine = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const float scale = __shfl_sync(~0u, scales[i], begin);
    mine = i == step ? scale : mine;
  }
  const int thread = static_cast<int>(threadIdx.x) - lane + begin;
  const int column = first + (step * static_cast<int>(blockDim.x) + thread) * kChunk;
  if (step < kSteps && column < end) {
    out.scales[row * out.scale_row + column / kScaleBlock * out.scale_block] = mine;
  }
}

}  // namespace weft::hopper
