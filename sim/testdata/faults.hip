// One fault in each kernel; sim/checks_test.cc expects it to be found, with these lines.
#include "sim/testdata/hip.h"

#define LDS __attribute__((address_space(3)))

extern "C" {

__global__ void past_the_end(float* out) {
  out[threadIdx.x] = 1;  // FAULT past_the_end: fewer numbers than threads
}

// The second lane's last bytes would be those at address 0.
__global__ void at_the_last_address(int* out) {
  using Four = int __attribute__((ext_vector_type(4)));
  const auto to = threadIdx.x == 0 ? (unsigned long long)out : -8ull;
  asm volatile("global_store_dwordx4 %0, %1, off" ::"v"(to), "v"(Four{}) : "memory");
}

__global__ void lds_past_the_end(float* out, int at) {
  __shared__ float data[64];
  data[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = data[at + threadIdx.x];  // FAULT lds_past_the_end
}

__global__ void lds_never_written(float* out, int at) {
  __shared__ float data[128];
  data[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = data[at + threadIdx.x];  // FAULT lds_never_written
}

__global__ void register_never_written(int* out) {
  int x;
  asm volatile("; v17 is nobody's\n v_mov_b32 %0, v17" : "=v"(x)::"v17");
  out[threadIdx.x] = x;  // FAULT register_never_written
}

/// The first 32 lanes write the register, the first `lanes` read it.
__global__ void lane_never_written(int* out, unsigned lanes) {
  int x = 0;
  asm volatile(
      "v_cmp_gt_u32 vcc, 32, %1\n"
      "s_and_saveexec_b64 s[40:41], vcc\n"
      "v_mov_b32 v17, 7\n"
      "s_mov_b64 exec, s[40:41]\n"
      "v_cmp_gt_u32 vcc, %2, %1\n"
      "s_and_saveexec_b64 s[40:41], vcc\n"
      "v_add_u32 %0, 1, v17\n"
      "s_mov_b64 exec, s[40:41]"
      : "+v"(x)
      : "v"(threadIdx.x), "s"(lanes)
      : "v17", "s40", "s41", "vcc");
  out[64 * blockIdx.x + threadIdx.x] = x;  // FAULT lane_never_written
}

/// The first workgroup writes the register, the others leave it out.
__global__ void register_of_the_first(int* out) {
  int x;
  asm volatile(
      "s_cmp_lg_u32 %1, 0\n"
      "s_cbranch_scc1 1f\n"
      "v_mov_b32 v17, 7\n"
      "1: v_mov_b32 %0, v17"
      : "=v"(x)
      : "s"(blockIdx.x)
      : "v17", "scc");
  out[64 * blockIdx.x + threadIdx.x] = x;  // FAULT register_of_the_first
}

/// The first workgroup waits for what it loads, the others do not.
__global__ void wait_of_the_first(int* out) {
  int x;
  asm volatile(
      "global_load_dword v17, %1, off\n"
      "s_cmp_lg_u32 %2, 0\n"
      "s_cbranch_scc1 1f\n"
      "s_waitcnt vmcnt(0)\n"
      "1: v_add_u32 %0, 1, v17\n"  // FAULT wait_of_the_first
      "s_waitcnt vmcnt(0)"
      : "=v"(x)
      : "v"(out), "s"(blockIdx.x)
      : "v17", "scc");
  out[64 + 64 * blockIdx.x + threadIdx.x] = x;
}

/// Only the first workgroup writes to its lanes' scratch.
__global__ void stack_of_the_first(int* out) {
  volatile int stack[16];
  if (blockIdx.x == 0) {
    stack[threadIdx.x % 16] = 7;
  }
  out[blockIdx.x * 64 + threadIdx.x] = stack[threadIdx.x % 16];
}

/// One half of a register is nobody's, whichever way the other one came there.
__global__ void half_never_written(int* out) {
  int x;
  asm volatile(
      "v_and_b32 v17, 0xffff0000, v17\n"
      "v_or_b32 v17, %1, v17\n"  // v17's upper half is what it was
      "v_and_b32 v18, 0xffff, v17\n"
      "v_alignbit_b32 %0, v17, v18, 24"  // with a byte of it
      : "=v"(x)
      : "v"(threadIdx.x)
      : "v17", "v18");
  out[threadIdx.x] = x;  // FAULT half_never_written
}

/// No fault: halves and bytes of registers that nobody wrote are filled one after the other.
__global__ void halves_one_by_one(int* out) {
  int x;
  int y;
  int z;
  asm volatile(
      "v_and_b32 v17, 0xffff0000, v17\n"
      "v_or_b32 v17, %3, v17\n"
      "v_and_b32 v17, 0xffff, v17\n"
      "v_lshl_or_b32 %0, %3, 16, v17\n"
      "s_mov_b32 s40, 0x07060100\n"
      "v_perm_b32 v18, v18, %3, s40\n"  // the low half from the thread's number
      "s_mov_b32 s40, 0x05040100\n"
      "v_perm_b32 %1, %3, v18, s40\n"
      "s_mov_b32 s40, 0xffff\n"
      "v_bfi_b32 v19, s40, %3, v19\n"
      "v_lshlrev_b32 v19, 16, v19\n"
      "v_lshrrev_b32 %2, 16, v19"
      : "=&v"(x), "=&v"(y), "=&v"(z)
      : "v"(threadIdx.x)
      : "v17", "v18", "v19", "s40");
  out[threadIdx.x] = x + y + z;
}

/// No fault: atomics on halves go by whole words, and the last one may be half of the allocation.
__global__ void atomic_on_last_half(unsigned short* out) {
  __scoped_atomic_fetch_add(out + 2, (unsigned short)threadIdx.x, __ATOMIC_RELAXED,
                            __MEMORY_SCOPE_DEVICE);
}

__global__ void unaligned_pairs(int* out) {
  __shared__ char data[64 * 17 + 4];
  const unsigned at = (unsigned)(unsigned long)(LDS char*)&data[17 * threadIdx.x];
  int low;
  int high;
  asm volatile(
      "ds_write2_b32 %2, %3, %4 offset1:1\n"
      "s_waitcnt lgkmcnt(0)\n"
      "ds_read2_b32 v[20:21], %2 offset1:1\n"
      "s_waitcnt lgkmcnt(0)\n"
      "v_mov_b32 %0, v20\n"
      "v_mov_b32 %1, v21"
      : "=&v"(low), "=&v"(high)
      : "v"(at), "v"(threadIdx.x), "v"(threadIdx.x + 1)
      : "v20", "v21", "memory");
  out[threadIdx.x] = low + high;
}

/// Of the mask, four lanes are nobody's.
__global__ void mask_never_written(int* out) {
  int x;
  asm volatile(
      "s_and_b64 s[40:41], s[40:41], 15\n"
      "v_cndmask_b32 %0, 5, 7, s[40:41]"
      : "=v"(x)::"s40", "s41", "scc");
  out[threadIdx.x] = x;  // FAULT mask_never_written
}

__global__ void no_wait(const int* in, int* out) {
  int x;
  asm volatile(
      "global_load_dword v20, %1, off\n"
      "v_add_u32 %0, v20, 1\n"  // FAULT no_wait
      "s_waitcnt vmcnt(0)"
      : "=v"(x)
      : "v"(in + threadIdx.x)
      : "v20", "memory");
  out[threadIdx.x] = x;
}

__global__ void no_wait_lds(int* out) {
  __shared__ int data[64];
  data[threadIdx.x] = threadIdx.x;
  __syncthreads();
  int x;
  asm volatile(
      "ds_read_b32 v20, %1\n"
      "v_add_u32 %0, v20, 1\n"  // FAULT no_wait_lds
      "s_waitcnt lgkmcnt(0)"
      : "=v"(x)
      : "v"((LDS int*)&data[threadIdx.x])
      : "v20", "memory");
  out[threadIdx.x] = x;
}

__global__ void race(float* out) {
  __shared__ float data[256];
  data[threadIdx.x] = threadIdx.x;  // FAULT race: no barrier before the others read it
  out[threadIdx.x] = data[255 - threadIdx.x];
}

__global__ void late_write(float* out) {
  __shared__ float data[256];
  data[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = data[255 - threadIdx.x];
  data[threadIdx.x] = 0;  // FAULT late_write: another wave may still read it
  __syncthreads();
  out[threadIdx.x] += data[threadIdx.x];
}

__global__ void own_reader_writes(float* out) {
  __shared__ volatile float data;
  if (threadIdx.x == 0) {
    data = 1;
  }
  __syncthreads();
  out[threadIdx.x] = data;
  if (threadIdx.x < 64) {
    __builtin_amdgcn_s_sleep(1);  // the other waves read meanwhile
    data = 2;  // FAULT own_reader_writes: and this wave has read it before they did
  }
}

__global__ void direct_load_no_wait(const int* in, int* out) {
  __shared__ int data[64];
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)(in + threadIdx.x),
                                   (LDS void*)data, 4, 0, 0);
  int x;
  asm volatile(
      "ds_read_b32 %0, %1\n"  // FAULT direct_load_no_wait
      "s_waitcnt lgkmcnt(0)"
      : "=v"(x)
      : "v"((LDS int*)&data[threadIdx.x])
      : "memory");
  __builtin_amdgcn_s_waitcnt(0);
  out[threadIdx.x] = x;
}

/// The offset counts for both addresses: the first sixteen lanes land below LDS.
__global__ void direct_load_below_lds(const int* in, int* out) {
  __shared__ int data[64];
  data[threadIdx.x] = 0;
  asm volatile(
      "s_mov_b32 m0, 0\n"
      "s_nop 0\n"
      "global_load_lds_dword %0, off offset:-64\n"
      "s_waitcnt vmcnt(0)" ::"v"(in + 16 + threadIdx.x)
      : "memory");
  out[threadIdx.x] = data[threadIdx.x];
}

__global__ void waits_for_nobody(unsigned* flag) {
  while (__scoped_atomic_load_n(flag, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) == 0) {
  }  // FAULT waits_for_nobody
}

__global__ void traps() { __builtin_trap(); }

__global__ void unknown() { asm volatile("ds_gws_sema_v gds"); }

/// Right, however odd it looks: a flag in LDS instead of a barrier.
__global__ void flag_instead_of_barrier(float* out) {
  __shared__ float data[64];
  __shared__ unsigned ready;
  if (threadIdx.x == 0) {
    __scoped_atomic_store_n(&ready, 0u, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
  }
  __syncthreads();
  if (threadIdx.x < 64) {
    data[threadIdx.x] = threadIdx.x;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    if (threadIdx.x == 0) {
      __scoped_atomic_fetch_add(&ready, 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP);
    }
  } else {
    while (__scoped_atomic_load_n(&ready, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP) == 0) {
      __builtin_amdgcn_s_sleep(1);
    }
    out[threadIdx.x - 64] = data[threadIdx.x - 64];
  }
}

/// Its scratch begins at 0.
__global__ void below_scratch(int* out) {
  asm volatile("scratch_store_dword off, %0, off offset:-4\n"  // FAULT below_scratch
               :
               : "v"(threadIdx.x)
               : "memory");
  out[threadIdx.x] = 1;
}

/// Writes where it must not, for ever.
__global__ void past_the_end_for_ever(int* out) {
  for (;;) {
    *(volatile int*)(out + 1000000) = threadIdx.x;  // FAULT past_the_end_for_ever
  }
}

}  // extern "C"
