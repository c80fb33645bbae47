// Copies between device memory and shared memory that run beside the threads: tiles through tensor
// maps, 4-byte pieces, and stores of tiles. PTX ISA 8.5, "Data Movement and Conversion
// Instructions: cp.async.bulk.tensor", "cp.async", "stmatrix", "st.async".
#pragma once

#include <cuda.h>

#include <cstdint>

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/tensor_map.h"

namespace weft::hopper {

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// Asks for those of boxes of kBoxRows rows.
template <int kBoxRows>
__device__ void prefetch_maps(const RowBoxes& boxes) {
  prefetch_map(boxes.whole);
  if (boxes.rows % kBoxRows != 0) {
    prefetch_map(boxes.last);
  }
}

/// Loads the map's box at (x, y), x along the contiguous dimension, to `to` (128-byte swizzled
/// maps: aligned to 1024). What lies outside the tensor arrives as zeros, and all bytes count.
__device__ inline void load_tile(void* to, const CUtensorMap& map, int x, int y, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(x), "r"(y)
      : "memory");
}
/// The same, with a cache policy (see evict_first()).
__device__ inline void load_tile(void* to, const CUtensorMap& map, int x, int y, Barrier& barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
/// Asks for the map's box at (x, y) to be in L2; see prefetch_bytes().
__device__ inline void prefetch_tile(const CUtensorMap& map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(&map),
               "r"(x), "r"(y)
               : "memory");
}
/// Loads once, into the same place of every block of the cluster whose bit is set in `blocks`, and
/// counts the bytes at the same barrier of each.
__device__ inline void load_tile_to(uint16_t blocks, void* to, const CUtensorMap& map, int x, int y,
                                    Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "h"(blocks), "r"(x), "r"(y)
      : "memory");
}
/// Loads `bytes` that lie together; these and both addresses are multiples of 16.
__device__ inline void load_bytes(void* to, const void* from, uint32_t bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(smem_address(to)),
      "l"(from), "r"(bytes), "r"(smem_address(&barrier))
      : "memory");
}
/// The same, with a cache policy (see evict_first()).
__device__ inline void load_bytes(void* to, const void* from, uint32_t bytes, Barrier& barrier,
                                  uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(smem_address(to)),
      "l"(from), "r"(bytes), "r"(smem_address(&barrier)), "l"(policy)
      : "memory");
}
/// Asks for `bytes` to be in L2; these and the address are multiples of 16. What others still write
/// there is not missed: L2 is where their writes come together.
__device__ inline void prefetch_bytes(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
/// For what is read once: it leaves L2 first.
__device__ inline uint64_t evict_first() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// For what L2 shall treat as if nothing were said.
__device__ inline uint64_t evict_unchanged() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Stores the map's box at (x, y); parts outside the tensor are left out. What threads wrote to
/// shared memory needs fence_shared() by each of them, and a barrier, before.
__device__ inline void store_tile(const CUtensorMap& map, int x, int y, const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
          &map),
      "r"(smem_address(from)), "r"(x), "r"(y)
      : "memory");
}
/// Ordinary writes to shared memory become visible to the copy engine and the tensor cores.
__device__ inline void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Ends a group of this thread's stores.
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all but the last kGroups groups have read their shared memory.
template <int kGroups>
__device__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

/// Copies 4 bytes, or writes zeros where not `valid`; see Barrier::arrive_after_copies().
__device__ inline void copy_async_4(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_address(to)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}

/// As copy_async_4(), 8 bytes.
__device__ inline void copy_async_8(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(smem_address(to)), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}

/// Copies 16 bytes past L1, or writes zeros where not `valid`; see await_copies().
__device__ inline void copy_async_16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
/// Ends a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last kGroups groups of this thread's have landed.
template <int kGroups>
__device__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8, and
/// gets bytes 4 (l % 4) and on of row l / 4 of each.
__device__ inline uint4 load_matrices_x4(uint32_t address) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

/// Two 8 x 8 matrices of 16-bit elements, one above the other: lane l gives the address of row l %
/// 16 and holds elements (l / 4, 2 (l % 4) + {0, 1}) of the upper in `upper`, of the lower in
/// `lower`.
__device__ inline void store_matrices_x2(uint32_t address, uint32_t upper, uint32_t lower) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address),
               "r"(upper), "r"(lower)
               : "memory");
}
/// Four: lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2,
                                         uint32_t r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

/// Two numbers of another block's shared memory, at an address of cluster_address() that is aligned
/// to 8 bytes.
__device__ inline float2 load_remote_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}

/// A store to another block's shared memory, beside the threads: its 4 bytes count at a barrier of
/// that block (both are addresses of cluster_address()).
__device__ inline void store_remote(uint32_t address, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(
          address),
      "f"(value), "r"(barrier)
      : "memory");
}
/// The same of two numbers, 8 bytes.
__device__ inline void store_remote(uint32_t address, float2 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(address),
      "f"(value.x), "f"(value.y), "r"(barrier)
      : "memory");
}
/// The same of four numbers, 16 bytes.
__device__ inline void store_remote(uint32_t address, float4 value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}

/// Copies to another block's shared memory, beside the threads: the bytes count at a barrier of
/// that block (`to` and `barrier` are addresses of cluster_address()). fence_shared() is between
/// what threads wrote and this.
__device__ inline void send_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(smem_address(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Two f32 rounded to bf16, the first in the low half.
__device__ inline uint32_t pack_bf16x2(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

}  // namespace weft::hopper
