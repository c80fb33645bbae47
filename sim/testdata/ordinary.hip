// Kernels as they are found in every collection of examples, written for no simulator.
#include "sim/testdata/hip.h"

extern "C" {

__global__ void add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    c[i] = a[i] + b[i];
  }
}

/// Four waves, each with its own byte of every word in shared memory.
__global__ void bytes_of_words(unsigned* out) {
  __shared__ unsigned char data[256];
  const unsigned at = threadIdx.x % 64 * 4 + threadIdx.x / 64;
  data[at] = threadIdx.x;
  data[at] += 1;
  __syncthreads();
  out[threadIdx.x] = data[threadIdx.x];
}

/// Sum of an array: a grid-stride loop, a tree in shared memory, shuffles for the last wave.
__global__ void reduce(const float* in, float* sum, int n) {
  __shared__ float part[256];
  float x = 0;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * grid_dim_x()) {
    x += in[i];
  }
  part[threadIdx.x] = x;
  __syncthreads();
  for (unsigned step = 128; step >= 64; step /= 2) {
    if (threadIdx.x < step) {
      part[threadIdx.x] += part[threadIdx.x + step];
    }
    __syncthreads();
  }
  if (threadIdx.x < 64) {
    x = part[threadIdx.x];
    for (int step = 32; step > 0; step /= 2) {
      x += shuffle_xor(x, step);
    }
    if (threadIdx.x == 0) {
      atomicAdd(sum, x);
    }
  }
}

/// Inclusive prefix sums of each block of 512 numbers (Hillis and Steele).
__global__ void scan(const int* in, int* out, int n) {
  __shared__ int data[2][512];
  const int t = threadIdx.x;
  const int i = blockIdx.x * 512 + t;
  int from = 0;
  data[0][t] = i < n ? in[i] : 0;
  __syncthreads();
  for (int step = 1; step < 512; step *= 2) {
    data[1 - from][t] = data[from][t] + (t >= step ? data[from][t - step] : 0);
    from = 1 - from;
    __syncthreads();
  }
  if (i < n) {
    out[i] = data[from][t];
  }
}

/// 32 x 32 tiles through shared memory with a padded row.
__global__ void transpose(const float* in, float* out, int rows, int columns) {
  __shared__ float tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x;
  int y = blockIdx.y * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) {
    if (x < columns && y + k < rows) {
      tile[threadIdx.y + k][threadIdx.x] = in[(long)(y + k) * columns + x];
    }
  }
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int k = 0; k < 32; k += 8) {
    if (x < rows && y + k < columns) {
      out[(long)(y + k) * rows + x] = tile[threadIdx.x][threadIdx.y + k];
    }
  }
}

/// The same without padding: every column read meets one bank.
__global__ void transpose_conflicts(const float* in, float* out) {
  __shared__ float tile[32][32];
  const int x = threadIdx.x;
  for (int k = threadIdx.y; k < 32; k += 8) {
    tile[k][x] = in[k * 32 + x];
  }
  __syncthreads();
  for (int k = threadIdx.y; k < 32; k += 8) {
    out[k * 32 + x] = tile[x][k];
  }
}

__global__ void histogram(const unsigned char* in, unsigned* bins, int n) {
  __shared__ unsigned local[256];
  local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * grid_dim_x()) {
    __scoped_atomic_fetch_add(&local[in[i]], 1u, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
  }
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
}

/// C = A B in tiles of 16 x 16, row-major, any sizes.
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float ta[16][16];
  __shared__ float tb[16][16];
  const int row = blockIdx.y * 16 + threadIdx.y;
  const int column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int at = 0; at < k; at += 16) {
    const int ka = at + threadIdx.x;
    const int kb = at + threadIdx.y;
    ta[threadIdx.y][threadIdx.x] = row < m && ka < k ? a[(long)row * k + ka] : 0;
    tb[threadIdx.y][threadIdx.x] = column < n && kb < k ? b[(long)kb * n + column] : 0;
    __syncthreads();
    for (int j = 0; j < 16; ++j) {
      sum += ta[threadIdx.y][j] * tb[j][threadIdx.x];
    }
    __syncthreads();
  }
  if (row < m && column < n) {
    c[(long)row * n + column] = sum;
  }
}

/// Numbers of many types: doubles, halves, divisions, 64-bit products, transcendental functions.
__global__ void arithmetic(const double* x, double* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) {
    return;
  }
  const double d = x[i];
  const float f = (float)d;
  const _Float16 h = (_Float16)f;
  const long big = (long)(d * 1000) * 123456789L;
  double* to = out + 8 * i;
  to[0] = d / (d + 3);
  to[1] = f / (f + 3);
  to[2] = (double)(h * h + (_Float16)1);
  to[3] = (double)(big / 1000);
  to[4] = (double)(big % 1000);
  to[5] = __builtin_elementwise_sqrt(d);
  to[6] = __builtin_elementwise_exp2(f);
  to[7] = __builtin_elementwise_log2(f);
}

/// A stack array indexed at run time lies in scratch.
__global__ void scratch(const int* in, int* out, int n) {
  int stack[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < 64; ++k) {
    stack[k] = in[(i + k) % n];
  }
  for (int k = 0; k < 64; ++k) {
    const int j = (unsigned)stack[k] % 64;
    stack[j] ^= stack[k] + k;
  }
  int sum = 0;
  for (int k = 0; k < 64; ++k) {
    sum = sum * 31 + stack[k];
  }
  out[i] = sum;
}

/// A vector in registers, indexed at run time: register index mode.
__global__ void dynamic_registers(const float* in, float* out, int n) {
  typedef float Vector __attribute__((ext_vector_type(16)));
  Vector v;
  for (int k = 0; k < 16; ++k) {
    v[k] = in[threadIdx.x * 16 + k];
  }
  v[n & 15] = 100;
  out[threadIdx.x] = v[(n * 3) & 15] + v[n & 15];
}

/// The same of a matrix's result, for which compilers wait between choosing the register and
/// reading it: number n of a lane's sixteen, each its row times `in` of its column.
__global__ void dynamic_result(const float* in, float* out, int n) {
  typedef float Vector __attribute__((ext_vector_type(16)));
  Vector v = {};
  v = __builtin_amdgcn_mfma_f32_32x32x2f32(threadIdx.x / 32 == 0 ? threadIdx.x % 32 : 0.0f,
                                           in[threadIdx.x % 32], v, 0, 0, 0);
  out[threadIdx.x] = v[n];
}

/// Of the host's and the devices' code.
__attribute__((managed)) int counter = 41;
__global__ void count_up() { ++counter; }

__device__ int table[4] = {10, 20, 30, 40};
__device__ int* table_pointer = &table[1];

/// A function that is really called, and a global variable with a relocation.
__attribute__((noinline)) __device__ int look_up(int i) { return table_pointer[i] + table[i]; }
__global__ void calls(int* out) { out[threadIdx.x] = look_up(threadIdx.x % 3); }

/// Recursion: how deep the stack becomes shows when it runs.
__attribute__((noinline)) __device__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__global__ void recursion(int* out, int n) { out[threadIdx.x] = fibonacci(n + threadIdx.x % 4); }

/// An array on the stack whose size is an argument.
__attribute__((noinline)) __device__ void fill(int* p, int n) {
  for (int k = 0; k < n; ++k) {
    p[k] = k * k;
  }
}
__global__ void dynamic_array(int* out, int n) {
  int* p = static_cast<int*>(__builtin_alloca(4 * (n + threadIdx.x % 3)));
  fill(p, n);
  int sum = 0;
  for (int k = 0; k < n; ++k) {
    sum += p[k * 7 % n];
  }
  out[threadIdx.x] = sum;
}

/// Workgroups of a cooperative launch meet as those of ROCm's cooperative groups do, at what the
/// host put behind the arguments, and then acquire. Wrongly: without the fence before (`fenced` is
/// 0).
__global__ void cooperative(unsigned* out, int rounds, int fenced) {
  const auto* hidden =
      (__attribute__((address_space(4))) const unsigned long*)__builtin_amdgcn_implicitarg_ptr();
  unsigned* arrived = (unsigned*)(hidden[11] + 32);
  for (int round = 1; round <= rounds; ++round) {
    const unsigned next = round == 1 ? 0 : out[(round - 1) % 2 * 512 + (blockIdx.x + 1) % 200];
    __syncthreads();
    out[round % 2 * 512 + blockIdx.x] = next + 1;
    if (fenced != 0) {
      __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
    }
    __builtin_amdgcn_s_barrier();
    if (threadIdx.x == 0) {
      const unsigned groups = *(const unsigned*)(hidden[11] + 40);
      const unsigned before = atomicAdd(arrived, 1u);
      if ((before & 0xffff) == groups - 1) {
        atomicAdd(arrived, 0x10000 - groups);
      } else {
        while (
            ((__scoped_atomic_load_n(arrived, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE) ^ before) >>
             16) == 0) {
          __builtin_amdgcn_s_sleep(1);
        }
      }
    }
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  }
}

/// All workgroups meet several times: needs them resident together.
__global__ void persistent(unsigned* counter, unsigned* out, int rounds) {
  for (int round = 1; round <= rounds; ++round) {
    __syncthreads();
    if (threadIdx.x == 0) {
      __scoped_atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
      while (__scoped_atomic_load_n(counter, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) <
             round * grid_dim_x()) {
      }
    }
    __syncthreads();
    // Every workgroup sees what all wrote in the round before.
    const unsigned before = round == 1
                                ? 0
                                : __scoped_atomic_load_n(&out[(blockIdx.x + 1) % grid_dim_x()],
                                                         __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    __syncthreads();
    if (threadIdx.x == 0) {
      __scoped_atomic_fetch_add(counter + 1, 1u, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
      while (__scoped_atomic_load_n(counter + 1, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) <
             round * grid_dim_x()) {
      }
      __scoped_atomic_store_n(&out[blockIdx.x], before + 1, __ATOMIC_RELAXED,
                              __MEMORY_SCOPE_DEVICE);
    }
  }
}

/// Which die each workgroup is on: hardware register XCC_ID.
__global__ void dies(unsigned* out) {
  if (threadIdx.x == 0) {
    out[blockIdx.x] = __builtin_amdgcn_s_getreg(20 | (31 << 11));
  }
}

}  // extern "C"
