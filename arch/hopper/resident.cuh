// Small named wrappers for what a resident (persistent) kernel needs on sm_90a: bulk copies into
// shared memory that complete on mbarriers, warp matrix products, named barriers, and the
// release/acquire pair that orders data between SMs. PTX ISA 8.5, sections 9.7.8.24
// (cp.async.bulk), 9.7.12.15 (mbarrier), 9.7.13.4 (mma), 9.7.12.1 (bar), 8 (memory consistency).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "arch/hopper/barrier.cuh"

namespace weft::hopper {

/// Four f32, read here and now: the compiler does not keep them.
__device__ inline float4 load_shared(uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address));
  return x;
}

// --- data between SMs ---

__device__ inline uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void add_release(uint32_t* address, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// Host memory: never from a cache.
__device__ inline uint32_t load_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release_system(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// A value and the number of the write that made it, in one 8-byte word that is written and read
/// whole: who needs the value waits for the number, with no flag, no fence and no second trip.
struct alignas(8) Tagged {
  float value;
  uint32_t tag;
};

__device__ inline void store_tagged(Tagged* to, float value, uint32_t tag) {
  asm volatile(
      "{\n.reg .b64 word;\nmov.b64 word, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], word;\n}" ::"l"(
          to),
      "r"(__float_as_uint(value)), "r"(tag)
      : "memory");
}
/// Two words, each read whole: value, tag, value, tag. 16-byte aligned.
__device__ inline uint4 load_tagged_pair(const Tagged* from) {
  uint4 pair;
  asm volatile(
      "{\n.reg .b64 first, second;\nld.relaxed.gpu.global.v2.b64 {first, second}, [%4];\n"
      "mov.b64 {%0, %1}, first;\nmov.b64 {%2, %3}, second;\n}"
      : "=r"(pair.x), "=r"(pair.y), "=r"(pair.z), "=r"(pair.w)
      : "l"(from)
      : "memory");
  return pair;
}
/// Waits until the pairs at address(j), for each j whose bit is set in `pending`, carry `tag`, and
/// gives their values. late() is asked after each round that was not enough: true gives up.
template <int kPairs, class Address, class Late>
__device__ void await_pairs(float2 (&values)[kPairs], uint32_t pending, uint32_t tag,
                            Address address, Late& late) {
  do {
    uint4 pair[kPairs];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if ((pending >> j & 1) != 0) {
        pair[j] = load_tagged_pair(address(j));
      }
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if ((pending >> j & 1) != 0 && pair[j].y == tag && pair[j].w == tag) {
        values[j] = {__uint_as_float(pair[j].x), __uint_as_float(pair[j].z)};
        pending &= ~(1u << j);
      }
    }
  } while (pending != 0 && !late());
}

// --- inside a CTA ---

/// d += a b: A 16 x 16 (row), B 16 x 8 (column), bf16, summed in f32. Lane (g, t) = (lane / 4, lane
/// % 4) holds a.x: row g, k 2t..2t+1; a.y: row g + 8; a.z: row g, k 2t+8..; a.w: row g + 8; b0:
/// column g, k 2t..; b1: k 2t+8..; d0, d1: row g, columns 2t, 2t+1; d2, d3: row g + 8.
__device__ inline void mma_bf16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// Two f32 as packed bf16, the first in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

/// The threads that compute in a resident CTA: all of them but the loader's warp.
struct Team {
  int thread;
  int warp;
  int lane;
  float* scratch;  ///< shared: 2 * kTeamWarps floats

  __device__ void sync() const { named_sync(1, kThreads); }

  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * 32;
};

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}

/// The sum over the team, the same bits in every thread. The barrier in it also orders what was
/// written to shared memory before.
__device__ inline float team_sum(const Team& team, float x, int round) {
  x = warp_sum(x);
  float* slots = team.scratch + (round & 1) * Team::kWarps;
  if (team.lane == 0) {
    slots[team.warp] = x;
  }
  team.sync();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Team::kWarps; ++i) {
    sum += slots[i];
  }
  return sum;
}

}  // namespace weft::hopper
