// Small named wrappers for what a resident (persistent) kernel needs on sm_90a: bulk copies into
// shared memory that complete on mbarriers, warp matrix products, named barriers, and the
// release/acquire pair that orders data between SMs. PTX ISA 8.5, sections 9.7.8.24
// (cp.async.bulk), 9.7.12.15 (mbarrier), 9.7.13.4 (mma), 9.7.12.1 (bar), 8 (memory consistency).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "arch/hopper/barrier.cuh"

namespace weft::hopper {

/// Sixteen bytes of shared memory, read here and now: neither moved nor kept.
__device__ inline uint4 load_shared_bits(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address));
  return x;
}
__device__ inline float4 load_shared(uint32_t address) {
  const uint4 x = load_shared_bits(address);
  return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
}
/// Eight bytes, and one, likewise.
__device__ inline uint2 load_shared_pair(uint32_t address) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address));
  return x;
}
__device__ inline uint32_t load_shared_byte(uint32_t address) {
  uint32_t x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
}
/// As many bytes as `x` has, to `x` in the lanes that `wanted` names; the others keep theirs.
__device__ inline void load_shared_if(bool wanted, uint32_t address, uint4& x) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
      : "r"(address), "r"(static_cast<uint32_t>(wanted)));
}

__device__ inline void load_shared_if(bool wanted, uint32_t address, uint32_t& x) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.shared.u32 %0, [%1];\n}"
               : "+r"(x)
               : "r"(address), "r"(static_cast<uint32_t>(wanted)));
}

/// A word that other warps read and write meanwhile.
__device__ inline uint32_t load_shared_word(uint32_t address) {
  uint32_t x;
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_shared_word(uint32_t address, uint32_t x) {
  asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/// x, of which the compiler knows nothing: what is made of it is made here, not kept in registers
/// since some outer loop began.
template <class T>
__device__ inline T made_here(T x) {
  static_assert(sizeof(T) == 4);
  asm volatile("" : "+r"(x));
  return x;
}

/// a / b rounded down, of a from 0 to 2^20 and b from 1 on, in a fifth of the instructions of a
/// division: (a + 0.5) / b is at least 0.5 / b from any whole number, and known within 2^-21 of it.
__device__ inline int small_quotient(int a, int b) {
  return static_cast<int>(__fdividef(static_cast<float>(a) + 0.5f, static_cast<float>(b)));
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
/// What others than this GPU's SMs write: never from a cache.
__device__ inline uint32_t load_system(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void store_release_system(uint32_t* address, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

/// Orders this thread's accesses of memory before it, and those that a barrier of its CTA has put
/// before it, with those after it, for all threads of the GPU.
__device__ inline void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

/// Two 8-byte words, each of them written and read whole.
__device__ inline void store_words(void* to, const uint4& words) {
  asm volatile(
      "{\n.reg .b64 first, second;\nmov.b64 first, {%1, %2};\nmov.b64 second, {%3, %4};\n"
      "st.relaxed.gpu.global.v2.b64 [%0], {first, second};\n}" ::"l"(to),
      "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
      : "memory");
}
__device__ inline uint4 load_words(const void* from) {
  uint4 words;
  asm volatile(
      "{\n.reg .b64 first, second;\nld.relaxed.gpu.global.v2.b64 {first, second}, [%4];\n"
      "mov.b64 {%0, %1}, first;\nmov.b64 {%2, %3}, second;\n}"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(from)
      : "memory");
  return words;
}

/// Two values and the number of the write that made them, in one 8-byte word that is written and
/// read whole: who needs the values waits for the number, with no flag, no fence and no second
/// trip. A value keeps the upper 24 bits of an f32 (2^-17 of it at most is lost), the tag has 16.
struct alignas(8) Tagged {
  uint32_t low;   ///< first value, and the lowest 8 bits of the second above it
  uint32_t high;  ///< the other 16 bits of the second, the tag above them

  __device__ float first() const { return __uint_as_float(low << 8); }
  __device__ float second() const {
    return __uint_as_float(__byte_perm(low, high, 0x5430) & ~0xffu);
  }
  __device__ uint32_t tag() const { return high >> 16; }
};

/// x rounded to its upper 24 bits, halves away from zero; a NaN stays one.
__device__ inline float round_to_tagged(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t magnitude = min((bits & 0x7fffffffu) + 0x80u, 0x7fffffffu);
  return __uint_as_float(((bits & 0x80000000u) | magnitude) & ~0xffu);
}
__device__ inline Tagged tagged(float first, float second, uint32_t tag) {
  const uint32_t a = __float_as_uint(round_to_tagged(first)) >> 8;
  const uint32_t b = __float_as_uint(round_to_tagged(second));
  return {a | b << 16, b >> 16 | tag << 16};
}
__device__ inline void store_tagged(Tagged* to, float first, float second, uint32_t tag) {
  const Tagged word = tagged(first, second, tag);
  asm volatile(
      "{\n.reg .b64 word;\nmov.b64 word, {%1, %2};\nst.relaxed.gpu.global.b64 [%0], word;\n}" ::"l"(
          to),
      "r"(word.low), "r"(word.high)
      : "memory");
}
/// Four values, to 16-byte aligned words.
__device__ inline void store_tagged_quad(Tagged* to, float4 x, uint32_t tag) {
  const Tagged first = tagged(x.x, x.y, tag);
  const Tagged second = tagged(x.z, x.w, tag);
  store_words(to, {first.low, first.high, second.low, second.high});
}
__device__ inline Tagged load_tagged(const Tagged* from) {
  Tagged word;
  asm volatile(
      "{\n.reg .b64 word;\nld.relaxed.gpu.global.b64 word, [%2];\nmov.b64 {%0, %1}, word;\n}"
      : "=r"(word.low), "=r"(word.high)
      : "l"(from)
      : "memory");
  return word;
}
/// Four values, of 16-byte aligned words, each word read whole.
struct TaggedQuad {
  Tagged words[2];

  __device__ bool has(uint32_t tag) const { return words[0].tag() == tag && words[1].tag() == tag; }
  __device__ float4 values() const {
    return {words[0].first(), words[0].second(), words[1].first(), words[1].second()};
  }
};
__device__ inline TaggedQuad load_tagged_quad(const Tagged* from) {
  const uint4 words = load_words(from);
  return {{{words.x, words.y}, {words.z, words.w}}};
}
/// The same, loaded again until it carries `tag`; `quad` is what was seen first. late() is asked
/// after each look that was not enough: true gives up.
template <class Late>
__device__ float4 await_quad(TaggedQuad quad, const Tagged* from, uint32_t tag, Late& late) {
  while (!quad.has(tag) && !late()) {
    quad = load_tagged_quad(from);
  }
  return quad.values();
}
template <class Late>
__device__ float2 await_pair(Tagged word, const Tagged* from, uint32_t tag, Late& late) {
  while (word.tag() != tag && !late()) {
    word = load_tagged(from);
  }
  return {word.first(), word.second()};
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
/// The same of f16.
__device__ inline void mma_f16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
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
/// Four bf16.
__device__ inline float4 widen4(uint2 pairs) {
  return {bf16_low(pairs.x), bf16_high(pairs.x), bf16_low(pairs.y), bf16_high(pairs.y)};
}

// --- what every step reads again ---

/// A policy for small things that every step reads: they stay in L2 while caches and streams of
/// weights, several times its size, pass through it.
__device__ inline uint64_t evict_last() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint32_t load_kept(const uint32_t* from) {
  uint32_t x;
  asm("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(x) : "l"(from), "l"(evict_last()));
  return x;
}
__device__ inline uint2 load_kept(const uint2* from) {
  uint2 x;
  asm("ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
      : "=r"(x.x), "=r"(x.y)
      : "l"(from), "l"(evict_last()));
  return x;
}
__device__ inline float load_kept(const __nv_bfloat16* from) {
  uint16_t x;
  asm("ld.global.nc.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(x) : "l"(from), "l"(evict_last()));
  return bf16_low(x);
}

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
