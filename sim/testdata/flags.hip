// Waves that order what they do in shared memory by flags instead of barriers, rightly and wrongly,
// and waves that write the same values. sim/flags_test.cc says what each kernel must give.
#include "sim/testdata/hip.h"

#define LDS __attribute__((address_space(3)))

namespace {
__device__ int acquire(const int* p) {
  return __scoped_atomic_load_n(p, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP);
}
__device__ void release(int* p, int x) {
  __scoped_atomic_store_n(p, x, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP);
}
constexpr int kSlots = 4;
}  // namespace

extern "C" {

/// One flag. Wrongly: the data after it (`late`), or more data after it (`more`).
__global__ void flag(int* out, int late, int more) {
  __shared__ int data[64];
  __shared__ int ready;
  if (threadIdx.x == 0) {
    ready = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    if (late != 0) {
      release(&ready, 1);
    }
    data[threadIdx.x] = threadIdx.x;
    if (late == 0) {
      release(&ready, 1);
    }
    if (more != 0) {
      data[threadIdx.x] = 2 * threadIdx.x;
    }
  } else {
    while (acquire(&ready) == 0) {
      __builtin_amdgcn_s_sleep(1);
    }
    out[threadIdx.x - 64] = data[threadIdx.x - 64];
  }
}

/// A message there and one back, several times. Each first look at a flag is before its loop, and
/// has the flag's address in another register.
__global__ void mailbox(const int* in, int* out, int late) {
  __shared__ int data[64];
  __shared__ int turn;
  const int lane = threadIdx.x % 64;
  if (threadIdx.x == 0) {
    turn = 0;
  }
  __syncthreads();
  for (int round = 1; round <= 3; ++round) {
    const int full = 2 * round - 1;
    if (threadIdx.x < 64) {
      if (late != 0 && lane == 0) {
        release(&turn, full);
      }
      data[lane] = in[lane] * round;
      if (late == 0 && lane == 0) {
        release(&turn, full);
      }
      while (acquire(&turn) != full + 1) {
        __builtin_amdgcn_s_sleep(1);
      }
    } else {
      while (acquire(&turn) != full) {
        __builtin_amdgcn_s_sleep(1);
      }
      out[(round - 1) * 64 + lane] = data[63 - lane] + round;
      if (lane == 0) {
        release(&turn, full + 1);
      }
    }
  }
}

/// As unoptimised code has it: atomics through pointers that may be anything, in functions.
__attribute__((optnone, noinline)) __device__ int acquire_slowly(const int* p) {
  return acquire(p);
}
__global__ __attribute__((optnone)) void unoptimised_flag(int* out, int late) {
  __shared__ int data[64];
  __shared__ int ready;
  if (threadIdx.x == 0) {
    ready = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    if (late != 0) {
      release(&ready, 1);
    }
    data[threadIdx.x] = threadIdx.x;
    if (late == 0) {
      release(&ready, 1);
    }
  } else {
    while (acquire_slowly(&ready) == 0) {
    }
    out[threadIdx.x - 64] = data[threadIdx.x - 64];
  }
}

/// Who finds a flag may store it anew at once.
__global__ __attribute__((optnone)) void unoptimised_replies(int* out) {
  __shared__ int turn;
  if (threadIdx.x == 0) {
    turn = 0;
  }
  __syncthreads();
  int* flag = &turn;
  for (int k = 0; k < 50; ++k) {
    if (threadIdx.x / 64 == k % 2) {
      while (__scoped_atomic_load_n(flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP) != k) {
      }
      if (threadIdx.x % 64 == 0) {
        __scoped_atomic_store_n(flag, k + 1, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP);
      }
    }
  }
  out[threadIdx.x] = threadIdx.x;
}

/// Nobody looks at the flag.
__global__ void unread_flag(int* out) {
  __shared__ int data[64];
  __shared__ int ready;
  if (threadIdx.x == 0) {
    ready = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    data[threadIdx.x] = threadIdx.x;
    release(&ready, 1);
  } else {
    out[threadIdx.x - 64] = data[threadIdx.x - 64] + (acquire(&ready) == 2 ? 1 : 0);
  }
}

/// A bound in shared memory is read in every turn of a loop, but it is no flag.
__global__ void bound(int* out) {
  __shared__ int data[64];
  __shared__ volatile int n;
  if (threadIdx.x == 0) {
    n = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    data[threadIdx.x] = threadIdx.x;
    n = 64;
  } else {
    int sum = 0;
    for (int k = 0; k < n; ++k) {
      sum += data[k];
    }
    out[threadIdx.x - 64] = sum;
  }
}

/// Four waves, one after the other: each is told by the one before, and so told of all.
__global__ void chain(int* out) {
  __shared__ int data[256];
  __shared__ int turn[5];
  const int wave = threadIdx.x / 64;
  if (threadIdx.x < 5) {
    turn[threadIdx.x] = 0;
  }
  __syncthreads();
  while (wave > 0 && acquire(&turn[wave]) == 0) {
  }
  data[threadIdx.x] = threadIdx.x + (wave > 0 ? data[threadIdx.x - 64] : 0);
  release(&turn[wave + 1], 1);
  if (wave == 3) {
    out[threadIdx.x % 64] = data[threadIdx.x] + data[threadIdx.x % 64];
  }
}

/// A wave fills slots that two others empty, with a counter for each. Wrongly: the counter of
/// filled slots runs ahead (`ahead`), or slots are filled before they are empty (`slots` of them).
__global__ void ring(const int* in, int* out, int n, int ahead, int slots) {
  __shared__ int slot[kSlots][64];
  __shared__ int filled, emptied[2];
  const int lane = threadIdx.x % 64;
  const int wave = threadIdx.x / 64;
  if (threadIdx.x == 0) {
    filled = emptied[0] = emptied[1] = 0;
  }
  __syncthreads();
  if (wave == 0) {
    for (int i = 0; i < n; ++i) {
      while (i - acquire(&emptied[0]) >= slots) {
      }
      while (i - acquire(&emptied[1]) >= slots) {
      }
      if (ahead != 0) {
        release(&filled, i + 1);
      }
      slot[i % kSlots][lane] = in[i * 64 + lane];
      if (ahead == 0) {
        release(&filled, i + 1);
      }
    }
  } else {
    for (int i = 0; i < n; ++i) {
      while (acquire(&filled) <= i) {
      }
      out[((wave - 1) * n + i) * 64 + lane] = slot[i % kSlots][lane];
      release(&emptied[wave - 1], i + 1);
    }
  }
}

/// A lock taken by compare and swap, given back by a store. Wrongly: given back before (`early`).
__global__ void spin_lock(int* out, int n, int early) {
  __shared__ int lock;
  __shared__ volatile int sum;
  if (threadIdx.x == 0) {
    lock = 0;
    sum = 0;
  }
  __syncthreads();
  if (threadIdx.x % 64 == 0) {
    for (int i = 0; i < n; ++i) {
      int free = 0;
      while (!__scoped_atomic_compare_exchange_n(&lock, &free, 1, false, __ATOMIC_ACQUIRE,
                                                 __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP)) {
        free = 0;
        __builtin_amdgcn_s_sleep(1);
      }
      if (early != 0) {
        release(&lock, 0);
      }
      sum += i;
      if (early == 0) {
        release(&lock, 0);
      }
      __builtin_amdgcn_s_sleep(1);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *out = sum;
  }
}

/// A lock with numbered tickets.
__global__ void ticket(int* out, int n) {
  __shared__ int next, served;
  __shared__ volatile int sum;
  if (threadIdx.x == 0) {
    next = served = 0;
    sum = 0;
  }
  __syncthreads();
  if (threadIdx.x % 64 == 0) {
    for (int i = 0; i < n; ++i) {
      const int mine = __scoped_atomic_fetch_add(&next, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
      while (acquire(&served) != mine) {
        __builtin_amdgcn_s_sleep(1);
      }
      sum += i;
      release(&served, mine + 1);
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *out = sum;
  }
}

/// Stored by a plain store, awaited by an atomic.
__global__ void atomic_waits(int* out) {
  __shared__ int data[64];
  __shared__ int ready;
  if (threadIdx.x == 0) {
    ready = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    data[threadIdx.x] = threadIdx.x;
    release(&ready, 1);
  } else {
    while (__scoped_atomic_fetch_or(&ready, 0, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP) == 0) {
    }
    out[threadIdx.x - 64] = data[threadIdx.x - 64];
  }
}

/// Data and flag with no wait between: done in order when both go to shared memory through the LDS
/// queue, and in none when the data comes straight from memory (`straight`).
__global__ void unwaited(const int* in, int* out, int straight) {
  __shared__ int data[64];
  __shared__ int ready;
  if (threadIdx.x == 0) {
    ready = 0;
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    if (straight != 0) {
      __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)(in + threadIdx.x),
                                       (LDS void*)data, 4, 0, 0);
    } else {
      data[threadIdx.x] = in[threadIdx.x];
    }
    asm volatile("ds_write_b32 %0, %1" ::"v"((LDS int*)&ready), "v"(1) : "memory");
    __builtin_amdgcn_s_sleep(1);
  } else {
    while (acquire(&ready) == 0) {
      __builtin_amdgcn_s_sleep(1);
    }
    out[threadIdx.x - 64] = data[threadIdx.x - 64];
  }
}

/// All waves write the same numbers to the same places, and read them without and with a barrier;
/// then one of them writes others. Wrongly: wave `other` writes others at once.
__global__ void same_values(int* out, int other) {
  __shared__ volatile int data[64];
  const int lane = threadIdx.x % 64;
  const int wave = threadIdx.x / 64;
  data[lane] = wave == other ? -lane : lane;
  const int before = data[lane];
  __builtin_amdgcn_s_sleep(1);
  data[lane] = wave == other ? -lane : lane;
  __syncthreads();
  out[threadIdx.x] = before + data[63 - lane];
  __syncthreads();
  if (wave == 0) {
    data[lane] = 7;
  }
  __syncthreads();
  out[threadIdx.x] += data[lane];
}

/// Bytes of the same words.
__global__ void same_bytes(int* out) {
  __shared__ volatile unsigned char data[64];
  const int lane = threadIdx.x % 64;
  data[lane] = lane;
  __syncthreads();
  out[threadIdx.x] = data[63 - lane];
}

/// A wave reads without order what others write, all the same: it may come before them.
__global__ void same_values_read_early(int* out) {
  __shared__ volatile int data[64];
  const int lane = threadIdx.x % 64;
  if (threadIdx.x < 192) {
    data[lane] = lane;
  } else {
    out[lane] = data[lane];
  }
}

/// Waves store what has been there since before the barrier, while others read it.
__global__ void same_values_again(int* out) {
  __shared__ volatile int data[64];
  const int lane = threadIdx.x % 64;
  if (threadIdx.x / 64 == 2) {
    data[lane] = lane;
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    out[threadIdx.x] = data[lane];
  } else {
    data[lane] = lane;
  }
  __builtin_amdgcn_s_sleep(1);
  out[threadIdx.x] = data[lane];
}

/// Atomics on shared memory through pointers that may be anything: flat instructions.
__global__ void flat_atomics(int* out, int where) {
  __shared__ int sum;
  if (threadIdx.x == 0) {
    sum = 0;
  }
  __syncthreads();
  int* volatile to = where != 0 ? &sum : out + 1;
  __scoped_atomic_fetch_add(to, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
  __syncthreads();
  if (threadIdx.x == 0) {
    *out = sum;
  }
}

}  // extern "C"
