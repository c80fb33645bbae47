// What operations on rows share on sm_90a: 16 bytes of 16-bit numbers a thread and step, sums over
// a block or a cluster of blocks that has a row, and storing results in fp8 or 16 bits
// (ops/scales.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "arch/hopper/barrier.cuh"
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

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
/// Passes over NaN.
struct Largest {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Over `lanes` neighbouring lanes, the same bits in each.
template <class Combine>
__device__ float over_lanes(float x, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x = combine(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}

/// Over all threads of the `cluster` blocks that have a row, in a fixed order. `slots`: shared, 32
/// floats for warps and one for each block, not in use by an earlier call.
template <class Combine>
__device__ float over_row(float x, int cluster, float* slots, Combine combine) {
  x = over_lanes(x, 32, combine);
  const int warps = blockDim.x / 32;
  if (threadIdx.x % 32 == 0) {
    slots[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = slots[0];
  for (int i = 1; i < warps; ++i) {
    x = combine(x, slots[i]);
  }
  if (cluster > 1) {
    float* parts = slots + 32;
    if (threadIdx.x < cluster) {
      const uint32_t to =
          cluster_address(smem_address(parts + cluster_rank()), static_cast<uint32_t>(threadIdx.x));
      asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
    }
    cluster_sync();
    x = parts[0];
    for (int i = 1; i < cluster; ++i) {
      x = combine(x, parts[i]);
    }
  }
  return x;
}
inline constexpr int kRowSlots = 32 + 8;

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
__device__ inline float scale_of(float largest) { return fmaxf(largest, kLeastAmax) / kFp8Most; }

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

/// Stores a chunk of a row, but for Scaling::row. By all lanes of kBlockLanes neighbours, whose
/// chunks are neighbours too; those past the end of the row have `valid` false and zeros.
template <class Pair, Scaling kScaling>
__device__ void store_chunk(const RowOut& out, int64_t row, int column,
                            const float (&values)[kChunk], bool valid, float tensor_reciprocal) {
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
    const float scale = scale_of(over_lanes(largest_of(values), kBlockLanes, Largest{}));
    if (valid) {
      store_fp8(out, row, column, values, 1 / scale);
      if (column % kScaleBlock == 0) {
        out.scales[row * out.scale_row + column / kScaleBlock * out.scale_block] = scale;
      }
    }
  }
}

}  // namespace weft::hopper
