// Stores from shared memory that run beside the threads, of bytes that lie together. PTX ISA 8.5,
// "cp.async.bulk", "cp.async.bulk.wait_group".
#pragma once

#include "arch/hopper/copy.cuh"

namespace weft::hopper {

/// Stores `bytes`; these and both addresses are multiples of 16. What threads wrote to shared
/// memory needs fence_shared() before; commit_stores() and wait_stores_read() as for store_tile().
__device__ inline void store_bytes(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(smem_address(from)), "r"(bytes)
               : "memory");
}
/// Waits until all but the last kGroups groups are complete: this thread sees what they wrote.
template <int kGroups>
__device__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace weft::hopper
