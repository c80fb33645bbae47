// What kernels say to each other through global memory, once right and with one thing wrong each;
// sim/coherence_test.cc knows which. Written as the instructions that LLVM's memory model asks for
// ("Memory Model GFX942"), so that each of their bits can be left out.
#include "sim/testdata/hip.h"

#define STORE(pointer, value, bits) \
  asm volatile("global_store_dword %0, %1, off " bits ::"v"(pointer), "v"(value) : "memory")
#define LOAD(value, pointer, bits)                                          \
  asm volatile("global_load_dword %0, %1, off " bits "\ns_waitcnt vmcnt(0)" \
               : "=&v"(value)                                               \
               : "v"(pointer)                                               \
               : "memory")
#define WAIT asm volatile("s_waitcnt vmcnt(0)" ::: "memory")
#define WRITE_BACK(bits) asm volatile("buffer_wbl2 " bits ::: "memory")
#define INVALIDATE(bits) asm volatile("buffer_inv " bits ::: "memory")
#define RELEASE(bits) \
  WRITE_BACK(bits);   \
  WAIT
#define NOTHING

// A bound, so that a wave that never sees its flag ends; on a second device, whose other may begin
// late, a high one.
#define POLL_UP_TO(most, pointer, expected, bits)                    \
  for (int seen = 0, n = 0; seen != (expected) && n < (most); ++n) { \
    LOAD(seen, pointer, bits);                                       \
    __builtin_amdgcn_s_sleep(1);                                     \
  }
#define POLL(pointer, expected, bits) \
  POLL_UP_TO(first != 0 ? 1000000 : 3000, pointer, expected, bits)

// Workgroup 0 hands 64 words to workgroup `to`. Workgroups are numbered from `first` on.
#define MESSAGE(name, stored, released, flagged, seen, acquired, loaded)              \
  __global__ void name(int* data, int* flag, int* out, unsigned to, unsigned first) { \
    const unsigned group = blockIdx.x + first;                                        \
    int* mine = data + threadIdx.x;                                                   \
    if (group == 0) {                                                                 \
      STORE(mine, 7, stored);                                                         \
      released;                                                                       \
      if (threadIdx.x == 0) {                                                         \
        STORE(flag, 1, flagged);                                                      \
      }                                                                               \
    } else if (group == to) {                                                         \
      POLL(flag, 1, seen)                                                             \
      acquired;                                                                       \
      int x;                                                                          \
      LOAD(x, mine, loaded);                                                          \
      out[threadIdx.x] = x;                                                           \
    }                                                                                 \
  }

extern "C" {

// --- right --------------------------------------------------------------------------------------

MESSAGE(right_agent, "", RELEASE("sc1"), "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(right_system, "", RELEASE("sc0 sc1"), "sc0 sc1", "sc0 sc1", INVALIDATE("sc0 sc1"), "")
MESSAGE(right_stored_through, "sc1", WAIT, "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(right_loaded_past, "", RELEASE("sc1"), "sc1", "sc1", NOTHING, "sc1")
MESSAGE(right_words_alone, "sc1", WAIT, "sc1", "sc1", NOTHING, "sc1")
MESSAGE(right_streamed, "sc1 nt", WAIT, "sc1", "sc1", INVALIDATE("sc1"), "nt")
// Between workgroups of one XCD, which share its L2.
MESSAGE(right_in_xcd, "", WAIT, "", "sc1", INVALIDATE("sc0"), "")
MESSAGE(right_through_system, "sc0 sc1", WAIT, "sc0 sc1", "sc0 sc1", INVALIDATE("sc0 sc1"), "")

__global__ void right_builtins(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  if (group == 0) {
    data[threadIdx.x] = 7;
    __scoped_atomic_store_n(flag, 1, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
  } else if (group == to) {
    for (int n = 0; n < 3000; ++n) {
      if (__scoped_atomic_load_n(flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) != 0) {
        break;
      }
    }
    out[threadIdx.x] = data[threadIdx.x];
  }
}

// Each word carries its own tag: no order among words is needed.
__global__ void right_tagged(int* data, int*, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  unsigned long long* mine = (unsigned long long*)data + threadIdx.x;
  if (group == 0) {
    const unsigned long long word = 7 | 5ull << 32;
    asm volatile("global_store_dwordx2 %0, %1, off sc1" ::"v"(mine), "v"(word) : "memory");
  } else if (group == to) {
    unsigned long long word = 0;
    for (int n = 0; n < 3000 && (word >> 32) != 5; ++n) {
      asm volatile("global_load_dwordx2 %0, %1, off sc1\ns_waitcnt vmcnt(0)"
                   : "=&v"(word)
                   : "v"(mine)
                   : "memory");
      __builtin_amdgcn_s_sleep(1);
    }
    out[threadIdx.x] = (int)word;
  }
}

// The reader has an old copy of the data in its caches before it waits.
__global__ void right_read_before(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == to) {
    int old;
    LOAD(old, mine, "");
    asm volatile("" ::"v"(old));
    if (threadIdx.x == 0) {
      STORE(flag + 32, 1, "sc1");
    }
    POLL(flag, 1, "sc1")
    INVALIDATE("sc1");
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  } else if (group == 0) {
    POLL(flag + 32, 1, "sc1")
    STORE(mine, 7, "");
    RELEASE("sc1");
    if (threadIdx.x == 0) {
      STORE(flag, 1, "sc1");
    }
  }
}

// Four waves store; one of them tells, for all of them, after they met. Four read likewise.
__global__ void right_by_one_wave(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  if (group == 0) {
    data[threadIdx.x] = 7;
    __syncthreads();
    if (threadIdx.x == 0) {
      __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
      __scoped_atomic_store_n(flag, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    }
  } else if (group == to) {
    if (threadIdx.x == 0) {
      for (int n = 0; n < 3000; ++n) {
        if (__scoped_atomic_load_n(flag, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE) != 0) {
          break;
        }
      }
      __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    }
    __syncthreads();
    out[threadIdx.x] = data[blockDim.x - 1 - threadIdx.x];
  }
}

// Workgroup 0 tells 1, which tells `to`: order goes on.
__global__ void right_chain(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == 0) {
    STORE(mine, 7, "");
    RELEASE("sc1");
    STORE(flag, 1, "sc1");
  } else if (group == 1) {
    POLL(flag, 1, "sc1")
    STORE(flag + 32, 1, "sc1");
  } else if (group == to) {
    POLL(flag + 32, 1, "sc1")
    INVALIDATE("sc1");
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  }
}

// Workgroup 0 stores even words and 1 odd ones, of the same lines; `to` takes all of them in one
// instruction, having heard of `heard` of the two.
#define HALVES(name, heard, what)                                                     \
  __global__ void name(int* data, int* flag, int* out, unsigned to, unsigned first) { \
    const unsigned group = blockIdx.x + first;                                        \
    int* mine = data + threadIdx.x;                                                   \
    if (group < 2) {                                                                  \
      if (group == 1) {                                                               \
        POLL(flag, 1, "sc1")                                                          \
      }                                                                               \
      if (threadIdx.x % 2 == group) {                                                 \
        STORE(mine, 7, "");                                                           \
      }                                                                               \
      RELEASE("sc1");                                                                 \
      STORE(flag + 32 * group, 1, "sc1");                                             \
    } else if (group == to) {                                                         \
      POLL(flag + 32 * ((heard)-1), 1, "sc1")                                         \
      INVALIDATE("sc1");                                                              \
      int x = 7;                                                                      \
      what;                                                                           \
      out[threadIdx.x] = x;                                                           \
    }                                                                                 \
  }
HALVES(right_both_halves, 2, LOAD(x, mine, ""))
HALVES(right_both_halves_again, 2, STORE(mine, 9, ""))

// The last workgroup to arrive adds what all of them stored, and leaves the counter zero.
__global__ void right_last_adds(int* data, int* counter, int* out, unsigned groups, unsigned) {
  __shared__ int last;
  data[blockIdx.x * 64 + threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = __scoped_atomic_fetch_add(counter, 1, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE) ==
           (int)groups - 1;
  }
  __syncthreads();
  if (last) {
    int sum = 0;
    for (unsigned g = 0; g < groups; ++g) {
      sum += data[g * 64 + threadIdx.x];
    }
    out[threadIdx.x] = sum;
    if (threadIdx.x == 0) {
      *counter = 0;
    }
  }
}

static __device__ void grid_barrier(int* counter, int groups, int round) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __scoped_atomic_fetch_add(counter, 1, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
    for (int n = 0; n < 3000; ++n) {
      if (__scoped_atomic_load_n(counter, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE) >=
          groups * round) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  }
  __syncthreads();
}

// Rounds of writing one's own and reading one's neighbour's, in two buffers.
__global__ void right_grid_barrier(int* data, int* counter, int* out, unsigned groups, unsigned) {
  const unsigned group = blockIdx.x;
  int x = (int)group;
  for (unsigned round = 0; round < 4; ++round) {
    int* buffer = data + round % 2 * groups * 64;
    buffer[group * 64 + threadIdx.x] = x;
    grid_barrier(counter, (int)groups, (int)round + 1);
    x = buffer[(group + 1) % groups * 64 + threadIdx.x] + 1;
  }
  out[group * 64 + threadIdx.x] = x;
}

// A lock; what it guards is plain.
__global__ void right_lock(int* data, int* lock, int* out, unsigned, unsigned) {
  if (threadIdx.x == 0) {
    for (int n = 0; n < 3000; ++n) {
      int expected = 0;
      if (__scoped_atomic_compare_exchange_n(lock, &expected, 1, false, __ATOMIC_ACQUIRE,
                                             __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
    data[0] += 1;
    out[0] = data[0];
    __scoped_atomic_store_n(lock, 0, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
  }
}

// Written again only after the reader has told that it read.
__global__ void right_handed_back(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  for (int round = 1; round <= 4; ++round) {
    if (group == 0) {
      STORE(mine, 6 + round, "");
      RELEASE("sc1");
      STORE(flag, round, "sc1");
      POLL(flag + 32, round, "sc1")
    } else if (group == to) {
      POLL(flag, round, "sc1")
      INVALIDATE("sc1");
      int x;
      LOAD(x, mine, "");
      out[threadIdx.x] = x;
      WAIT;
      STORE(flag + 32, round, "sc1");
    }
  }
}

// Waves of one workgroup, through memory.
__global__ void right_in_group(int* data, int*, int* out, unsigned, unsigned) {
  data[blockIdx.x * blockDim.x + threadIdx.x] = (int)threadIdx.x;
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] =
      data[blockIdx.x * blockDim.x + blockDim.x - 1 - threadIdx.x];
}

// Two waves share a line, each with words of its own.
__global__ void right_shared_lines(int* data, int*, int* out, unsigned, unsigned) {
  data[16 + threadIdx.x] = (int)threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = data[16 + blockDim.x - 1 - threadIdx.x];
}

// Neighbours in a line, and halves of a word, are different memory.
__global__ void right_neighbours(int* data, int*, int* out, unsigned, unsigned) {
  unsigned short* halves = (unsigned short*)data;
  for (int round = 0; round < 4; ++round) {
    halves[blockIdx.x] = halves[blockIdx.x] + 1;
    WAIT;
  }
  out[blockIdx.x] = halves[blockIdx.x];
}

// Everybody stores the same.
__global__ void right_same_value(int* data, int*, int* out, unsigned, unsigned) {
  data[threadIdx.x] = (int)threadIdx.x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

__global__ void right_histogram(int* data, int*, int* out, unsigned, unsigned) {
  atomicAdd(&data[threadIdx.x % 8], 1);
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

// A sum by compare and swap, which begins with a load of data.
__global__ void right_swap_loop(int* data, int*, int* out, unsigned, unsigned) {
  int old;
  LOAD(old, data, "");
  for (int n = 0; n < 100000; ++n) {
    if (__scoped_atomic_compare_exchange_n(data, &old, old + 1, false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)) {
      break;
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

// The same where the compiler begins with a scalar load: all lanes guess alike.
__global__ void right_scalar_swap_loop(int* data, int*, int* out, unsigned, unsigned) {
  int old;
  asm volatile("s_load_dword %0, %1, 0x0\n s_waitcnt lgkmcnt(0)" : "=s"(old) : "s"(data));
  for (int n = 0; n < 100000; ++n) {
    if (__scoped_atomic_compare_exchange_n(data, &old, old + 1, false, __ATOMIC_RELAXED,
                                           __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)) {
      break;
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = 1;
}

// In place. Four waves do the same work, as compilers have them where there is little of it; one
// of them stores.
__global__ void right_repeated_in_place(int* data, int*, int* out, unsigned, unsigned) {
  const unsigned lane = threadIdx.x % 64;
  const int x = data[blockIdx.x * 64 + lane];
  if (threadIdx.x < 64) {
    data[blockIdx.x * 64 + lane] = x + 1;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x + 1;
  } else {
    asm volatile("" ::"v"(x));
  }
}

// Likewise, where the others' stores go beyond a buffer, as Triton has them.
__global__ void right_repeated_beyond_buffer(int* data, int*, int* out, unsigned, unsigned) {
  const unsigned lane = threadIdx.x % 64;
  const int x = data[blockIdx.x * 64 + lane];
  const auto buffer = __builtin_amdgcn_make_buffer_rsrc(data, 0, 0x7ffffffe, 0x27000);
  const unsigned place = threadIdx.x < 64 ? 4 * (blockIdx.x * 64 + lane) : 0x80000000;
  __builtin_amdgcn_raw_buffer_store_b32(x + 1, buffer, place, 0, 0);
  if (threadIdx.x < 64) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = x + 1;
  }
}

// --- one thing wrong ----------------------------------------------------------------------------

MESSAGE(flag_without_sc1, "", RELEASE("sc1"), "", "sc1", INVALIDATE("sc1"), "")
MESSAGE(poll_without_sc1, "", RELEASE("sc1"), "sc1", "", INVALIDATE("sc1"), "")
MESSAGE(poll_of_workgroup, "", RELEASE("sc1"), "sc1", "sc0", INVALIDATE("sc1"), "")
MESSAGE(no_write_back, "", WAIT, "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(write_back_without_sc1, "", RELEASE(""), "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(write_back_not_waited_for, "", WRITE_BACK("sc1"), "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(store_not_waited_for, "sc1", NOTHING, "sc1", "sc1", INVALIDATE("sc1"), "")
MESSAGE(no_invalidate, "", RELEASE("sc1"), "sc1", "sc1", NOTHING, "")
MESSAGE(invalidate_without_bits, "", RELEASE("sc1"), "sc1", "sc1", INVALIDATE(""), "")
MESSAGE(invalidate_of_workgroup, "", RELEASE("sc1"), "sc1", "sc1", INVALIDATE("sc0"), "")
MESSAGE(no_invalidate_in_xcd, "", WAIT, "sc1", "sc1", NOTHING, "")
MESSAGE(data_stored_for_workgroup, "sc0", WAIT, "sc1", "sc1", INVALIDATE("sc1"), "")
// Right for one device, wrong between two.
MESSAGE(write_back_of_agent, "", RELEASE("sc1"), "sc0 sc1", "sc0 sc1", INVALIDATE("sc0 sc1"), "")
MESSAGE(poll_of_agent, "", RELEASE("sc0 sc1"), "sc0 sc1", "sc1", INVALIDATE("sc0 sc1"), "")
MESSAGE(invalidate_of_agent, "", RELEASE("sc0 sc1"), "sc0 sc1", "sc0 sc1", INVALIDATE("sc1"), "")

// The caches are emptied before the flag is seen.
__global__ void invalidate_too_early(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == 0) {
    STORE(mine, 7, "");
    RELEASE("sc1");
    STORE(flag, 1, "sc1");
  } else if (group == to) {
    INVALIDATE("sc1");
    POLL(flag, 1, "sc1")
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  }
}

// They are emptied while the load of the flag is under way.
__global__ void invalidate_before_wait(int* data, int* flag, int* out, unsigned to,
                                       unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == 0) {
    STORE(mine, 7, "");
    RELEASE("sc1");
    STORE(flag, 1, "sc1");
  } else if (group == to) {
    for (int seen = 0, n = 0; seen != 1 && n < 3000; ++n) {
      asm volatile("global_load_dword %0, %1, off sc1\nbuffer_inv sc1\ns_waitcnt vmcnt(0)"
                   : "=&v"(seen)
                   : "v"(flag)
                   : "memory");
      __builtin_amdgcn_s_sleep(1);
    }
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  }
}

// Written back, but after the flag.
__global__ void write_back_too_late(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == 0) {
    STORE(mine, 7, "");
    WAIT;
    STORE(flag, 1, "sc1");
    RELEASE("sc1");
  } else if (group == to) {
    POLL(flag, 1, "sc1")
    INVALIDATE("sc1");
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  }
}

__global__ void no_flag(int* data, int*, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  if (group == 0) {
    STORE(data + threadIdx.x, 7, "");
    RELEASE("sc1");
  } else if (group == to) {
    for (int n = 0; n < 40; ++n) {
      __builtin_amdgcn_s_sleep(1);
    }
    INVALIDATE("sc1");
    int x;
    LOAD(x, data + threadIdx.x, "");
    out[threadIdx.x] = x;
  }
}

// Handed back by nobody: the second round's data may be stored while the first round's are read.
__global__ void written_too_soon(int* data, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  int* mine = data + threadIdx.x;
  if (group == 0) {
    STORE(mine, 7, "");
    RELEASE("sc1");
    STORE(flag, 1, "sc1");
    for (int n = 0; n < 40; ++n) {
      __builtin_amdgcn_s_sleep(1);
    }
    STORE(mine, 8, "");
    WAIT;
  } else if (group == to) {
    POLL(flag, 1, "sc1")
    INVALIDATE("sc1");
    int x;
    LOAD(x, mine, "");
    out[threadIdx.x] = x;
  }
}

HALVES(one_half, 1, LOAD(x, mine, ""))
HALVES(one_half_again, 1, STORE(mine, 9, ""))

__global__ void two_write(int* data, int*, int*, unsigned, unsigned) {
  STORE(data + threadIdx.x, (int)blockIdx.x + 7, "");
}

__global__ void no_barrier_in_group(int* data, int*, int* out, unsigned, unsigned) {
  data[threadIdx.x] = (int)threadIdx.x;
  WAIT;
  out[threadIdx.x] = data[blockDim.x - 1 - threadIdx.x];
}

// As right_shared_lines.
__global__ void no_barrier_in_shared_lines(int* data, int*, int* out, unsigned, unsigned) {
  data[16 + threadIdx.x] = (int)threadIdx.x;
  WAIT;
  out[threadIdx.x] = data[16 + blockDim.x - 1 - threadIdx.x];
}

// A third wave stores what is one of the two's.
__global__ void third_in_shared_line(int* data, int*, int*, unsigned word, unsigned) {
  STORE(data + 16 + threadIdx.x, 7, "");
  if (threadIdx.x == 128) {
    STORE(data + word, 9, "");
  }
}

// The scalar cache does not see it.
__global__ void scalar_load_of_data(int* data, int*, int* out, unsigned, unsigned) {
  STORE(data, 7, "");
  WAIT;
  int x;
  asm volatile("s_load_dword %0, %1, 0x0\ns_waitcnt lgkmcnt(0)" : "=s"(x) : "s"(data) : "memory");
  out[threadIdx.x] = x;
}

// The lock is given back before what it guards is written back.
__global__ void unlocked_too_soon(int* data, int* lock, int* out, unsigned, unsigned) {
  if (threadIdx.x == 0) {
    for (int n = 0; n < 3000; ++n) {
      int expected = 0;
      if (__scoped_atomic_compare_exchange_n(lock, &expected, 1, false, __ATOMIC_ACQUIRE,
                                             __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
    data[0] += 1;
    out[0] = data[0];
    __scoped_atomic_store_n(lock, 0, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  }
}

// Counted as arrived before its data are written back.
__global__ void arrived_too_soon(int* data, int* counter, int* out, unsigned groups, unsigned) {
  data[blockIdx.x * 64 + threadIdx.x] = 1;
  if (threadIdx.x == 0) {
    __scoped_atomic_fetch_add(counter, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    for (int n = 0; n < 3000; ++n) {
      if (__scoped_atomic_load_n(counter, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE) == (int)groups) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  }
  out[blockIdx.x * 64 + threadIdx.x] = data[(blockIdx.x + 1) % groups * 64 + threadIdx.x];
}

// A counter of atomics, read as data.
__global__ void counter_read_as_data(int* data, int*, int* out, unsigned, unsigned) {
  int x = 0;
  if (blockIdx.x == 0) {
    atomicAdd(data, 1);
  } else {
    for (int n = 0; x == 0 && n < 3000; ++n) {
      LOAD(x, data, "");
      __builtin_amdgcn_s_sleep(1);
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// The writer waits for an answer to a flag that its L2 may keep for ever.
__global__ void flag_of_agent(int*, int* flag, int* out, unsigned to, unsigned first) {
  const unsigned group = blockIdx.x + first;
  if (group == 0) {
    STORE(flag, 1, "sc1");
    POLL_UP_TO(1000000, flag + 32, 1, "sc0 sc1")
    for (int n = 0; n < 20000; ++n) {  // it must not end before the other one does
      __builtin_amdgcn_s_sleep(1);
    }
  } else if (group == to) {
    POLL(flag, 1, "sc0 sc1")
    STORE(flag + 32, 1, "sc0 sc1");
  }
  out[threadIdx.x] = 1;
}

// Counted on two devices by atomics of one device's scope.
__global__ void atomic_of_agent(int* data, int*, int* out, unsigned groups, unsigned first) {
  if (threadIdx.x == 0) {
    __scoped_atomic_fetch_add(data, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    for (int n = 0; n < 1000000; ++n) {
      if (__scoped_atomic_load_n(data, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == (int)groups) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
  }
  out[first] = 1;
}
__global__ void right_atomic_of_system(int* data, int*, int* out, unsigned groups, unsigned first) {
  if (threadIdx.x == 0) {
    __scoped_atomic_fetch_add(data, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
    for (int n = 0; n < 1000000; ++n) {
      if (__scoped_atomic_load_n(data, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == (int)groups) {
        break;
      }
      __builtin_amdgcn_s_sleep(1);
    }
  }
  out[first] = 1;
}

// The host is told before the data for it have arrived.
__global__ void host_told_too_soon(int* data, int* flag, int*, unsigned, unsigned first) {
  STORE(data + 64 * first + threadIdx.x, 7, "");
  STORE(flag, 1, "sc0 sc1");
  WAIT;
}
__global__ void right_host_told(int* data, int* flag, int*, unsigned, unsigned first) {
  STORE(data + 64 * first + threadIdx.x, 7, "");
  RELEASE("sc0 sc1");
  STORE(flag, 1, "sc0 sc1");
}

}  // extern "C"
