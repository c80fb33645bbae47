// Workgroups and waves that wait, for long or for ever (sim/parking_test.cc).
#include "sim/testdata/hip.h"

namespace {
__device__ unsigned load(const unsigned* p) {
  return __scoped_atomic_load_n(p, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE);
}
__device__ void store(unsigned* p, unsigned x) {
  __scoped_atomic_store_n(p, x, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
}
/// Some instructions for each of n turns.
__device__ unsigned work(unsigned x, int n) {
#pragma unroll 1
  for (int k = 0; k < n; ++k) {
    x = (x ^ x >> 7) * 0x9e3779b9u + k;
  }
  return x;
}
}  // namespace

extern "C" {

/// The first workgroup works, changing a word now and then, and tells the others at last.
__global__ void wait_for_one(unsigned* flag, unsigned* out, int n) {
  if (blockIdx.x == 0) {
    unsigned x = threadIdx.x;
    for (int k = 0; k < n; ++k) {
      x = work(x, 100);
      out[gridDim.x * blockDim.x + threadIdx.x] = x;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      store(flag, 1);
    }
  } else if (threadIdx.x == 0) {
    while (load(flag) == 0) {
    }
  }
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = load(flag) + blockIdx.x;
}

/// Likewise, workgroups of one wave, which stores to shared memory and to its stack in each turn of
/// its waiting.
__global__ void wait_and_note(unsigned* flag, unsigned* out, int n) {
  __shared__ volatile unsigned noted[64];
  volatile unsigned last = 0;
  noted[threadIdx.x] = 1;
  if (blockIdx.x == 0) {
    noted[threadIdx.x] = work(threadIdx.x, n) & 1;
    store(flag, 1);
  } else {
    while (load(flag) == 0) {
      last = noted[threadIdx.x];
      noted[threadIdx.x] = blockIdx.x;
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = noted[threadIdx.x] + last;
}

/// All others of a workgroup wait for its first wave, by a flag in shared memory.
__global__ void wait_for_wave(unsigned* out, int n) {
  __shared__ unsigned flag;
  if (threadIdx.x == 0) {
    flag = 0;
  }
  __syncthreads();
  unsigned x = 0;
  if (threadIdx.x < 64) {
    x = work(threadIdx.x, n);
    __scoped_atomic_store_n(&flag, 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP);
  } else {
    while (__scoped_atomic_load_n(&flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP) == 0) {
    }
  }
  out[threadIdx.x] = x;
}

/// The last workgroup reads everybody's word in turn, until all are there.
__global__ void gather(unsigned* words, unsigned* out) {
  const unsigned last = gridDim.x - 1;
  if (blockIdx.x == last && threadIdx.x == 0) {
    unsigned missing;
    do {
      missing = 0;
      for (unsigned k = 0; k < last; ++k) {
        missing += load(&words[k]) == 0;
      }
    } while (missing != 0);
    *out = 1;
  } else if (threadIdx.x == 0) {
    if (blockIdx.x > 0) {
      while (load(&words[blockIdx.x - 1]) == 0) {
      }
    }
    store(&words[blockIdx.x], work(blockIdx.x, 100) | 1);
  }
}

/// Workgroups take a lock in memory, by compare and swap.
__global__ void lock(unsigned* lock, unsigned* sum, int n) {
  if (threadIdx.x != 0) {
    return;
  }
  for (int k = 0; k < n; ++k) {
    unsigned free = 0;
    while (!__scoped_atomic_compare_exchange_n(lock, &free, 1u, false, __ATOMIC_ACQUIRE,
                                               __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)) {
      free = 0;
    }
    const unsigned before = __scoped_atomic_load_n(sum, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    __scoped_atomic_store_n(sum, work(before, 50) * 0 + before + 1, __ATOMIC_RELAXED,
                            __MEMORY_SCOPE_DEVICE);
    store(lock, 0);
  }
}

/// Barriers of the whole grid as Triton's persistent kernels have them: a thread asks by an atomic
/// and tells its workgroup through shared memory, again and again. In each round workgroups work,
/// one of them or all, and then take their neighbours' words.
__global__ void exchange(unsigned* counter, unsigned* words, unsigned* out, unsigned rounds, int n,
                         unsigned all) {
  __shared__ unsigned seen;
  unsigned x = blockIdx.x;
  unsigned worked = threadIdx.x;
  for (unsigned round = 0; round < rounds; ++round) {
    unsigned* to = words + round % 2 * gridDim.x;
    if (all || blockIdx.x == round) {
      worked = work(worked, n);
    }
    if (threadIdx.x == 0) {
      __scoped_atomic_store_n(&to[blockIdx.x], x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __scoped_atomic_fetch_add(counter, 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
    }
    unsigned arrived;
    do {
      if (threadIdx.x == 0) {
        seen = __scoped_atomic_fetch_add(counter, 0u, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE);
      }
      __syncthreads();
      arrived = seen;
      __syncthreads();
    } while (arrived < (round + 1) * gridDim.x);
    x += load(&to[(blockIdx.x + 1) % gridDim.x]);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x ^ worked;
}

/// Waits for nobody, but not for ever.
__global__ void gives_up(unsigned* flag, unsigned* out, int n) {
  int turns = 0;
  while (load(flag) == 0 && ++turns < n) {
  }
  out[threadIdx.x] = turns;
}

__global__ void stores_for_ever(unsigned* out, unsigned step) {
  for (unsigned k = 0;; k += step) {
    *(volatile unsigned*)&out[blockIdx.x] = k;
  }
}

/// Reads a new line of memory after some work, again and again.
__global__ void slow_walk(const unsigned* in, unsigned* out, int lines, int n) {
  unsigned x = 0;
  for (int k = 0; k < lines; ++k) {
    x = work(x, n) + in[32 * k];
  }
  out[threadIdx.x] = x;
}

}  // extern "C"
