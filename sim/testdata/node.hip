// Kernels of several devices that meet in one another's memory.
#include "sim/testdata/hip.h"

extern "C" {

/// Sums an array over the ranks of a ring, in place: each rank is one workgroup on one device, has
/// an inbox of fine-grained memory with room for every step, and writes into its successor's. A
/// step's arrival is told by a flag.
__global__ void ring_all_reduce(float* data, const float* inbox, float* next_inbox,
                                const unsigned* flag, unsigned* next_flag, int rank, int ranks,
                                int chunk) {
  const int steps = 2 * (ranks - 1);
  for (int step = 0; step < steps; ++step) {
    const bool reduces = step < ranks - 1;
    const int round = reduces ? step : step - (ranks - 1) - 1;
    const int sent = ((rank - round) % ranks + ranks) % ranks;
    const int received = ((rank - round - 1) % ranks + ranks) % ranks;
    for (int i = threadIdx.x; i < chunk; i += blockDim.x) {
      next_inbox[step * chunk + i] = data[sent * chunk + i];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __scoped_atomic_store_n(next_flag, step + 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
      while (__scoped_atomic_load_n(flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_SYSTEM) < step + 1u) {
        __builtin_amdgcn_s_sleep(1);
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < chunk; i += blockDim.x) {
      const float x = inbox[step * chunk + i];
      data[received * chunk + i] = reduces ? data[received * chunk + i] + x : x;
    }
  }
}

/// Writes where it is told to.
__global__ void put(int* to, int value) { to[threadIdx.x] = value + threadIdx.x; }

}  // extern "C"
