// Kernels in the idioms that HIP programs are made of, compiled without optimisation, with some and
// with all of it (sim/corpus_test.cc).
#include "sim/testdata/hip.h"

#define FOR_ALL(i, n) \
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (int)(n); i += blockDim.x * grid_dim_x())

namespace {

using half = _Float16;
using half2 = half __attribute__((ext_vector_type(2)));
using half4 = half __attribute__((ext_vector_type(4)));
using float2 = float __attribute__((ext_vector_type(2)));
using float4 = float __attribute__((ext_vector_type(4)));
using float16 = float __attribute__((ext_vector_type(16)));
using double4 = double __attribute__((ext_vector_type(4)));
using int4 = int __attribute__((ext_vector_type(4)));

__device__ int lane_id() { return lane_number(); }

template <class T>
__device__ T shuffle(T x, int from) {
  static_assert(sizeof(T) == 4);
  return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(from * 4, __builtin_bit_cast(int, x)));
}
template <class T>
__device__ T shuffle_down(T x, int by) {
  const int from = lane_id() + by;
  return shuffle(x, from < 64 ? from : lane_id());
}
template <class T>
__device__ T shuffle_up(T x, int by) {
  const int from = lane_id() - by;
  return shuffle(x, from >= 0 ? from : lane_id());
}
template <int kControl>
__device__ int dpp(int x) {
  return __builtin_amdgcn_update_dpp(0, x, kControl, 15, 15, false);
}

}  // namespace

extern "C" {

// --- waves ---------------------------------------------------------------------------------------

/// The sum of each wave in four ways: shuffles, DPP, LDS swizzles, reading lane by lane.
__global__ void wave_sums(const int* in, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int down = in[i];
  for (int by = 32; by > 0; by /= 2) {
    down += shuffle_down(down, by);
  }
  int rows = in[i];
  rows += dpp<0x111>(rows);  // row_shr:1
  rows += dpp<0x112>(rows);
  rows += dpp<0x114>(rows);
  rows += dpp<0x118>(rows);
  const int by_rows = __builtin_amdgcn_readlane(rows, 15) + __builtin_amdgcn_readlane(rows, 31) +
                      __builtin_amdgcn_readlane(rows, 47) + __builtin_amdgcn_readlane(rows, 63);
  int swizzled = in[i];
  swizzled += __builtin_amdgcn_ds_swizzle(swizzled, 0x041f);  // xor 1
  swizzled += __builtin_amdgcn_ds_swizzle(swizzled, 0x081f);
  swizzled += __builtin_amdgcn_ds_swizzle(swizzled, 0x101f);
  swizzled += __builtin_amdgcn_ds_swizzle(swizzled, 0x201f);
  swizzled += __builtin_amdgcn_ds_swizzle(swizzled, 0x401f);
  swizzled += shuffle(swizzled, lane_id() ^ 32);
  int read = 0;
  for (int l = 0; l < 64; ++l) {
    read += __builtin_amdgcn_readlane(in[i], l);
  }
  const int wave = i / 64;
  if (lane_id() == 0) {
    out[4 * wave] = down;
    out[4 * wave + 1] = by_rows;
    out[4 * wave + 2] = swizzled;
    out[4 * wave + 3] = read;
  }
}

/// Keeps what is positive, in order within a wave: ballots and counts of the lanes below.
__global__ void compact(const int* in, int* out, int* count, int n) {
  FOR_ALL(i, n) {
    const int x = in[i];
    const unsigned long keep = __builtin_amdgcn_ballot_w64(x > 0);
    const int before = __builtin_amdgcn_mbcnt_hi((unsigned)(keep >> 32),
                                                 __builtin_amdgcn_mbcnt_lo((unsigned)keep, 0));
    const int leader = __builtin_ctzl(__builtin_amdgcn_ballot_w64(true));
    int begin = 0;
    if (lane_id() == leader) {
      begin = atomicAdd(count, __builtin_popcountl(keep));
    }
    begin = shuffle(begin, leader);
    if (x > 0) {
      out[begin + before] = x;
    }
  }
}

/// Inclusive sums of a workgroup: shuffles within a wave, LDS between waves.
__global__ void block_scan(const float* in, float* out) {
  __shared__ float sums[16];
  const int t = threadIdx.x;
  float x = in[blockIdx.x * blockDim.x + t];
  for (int by = 1; by < 64; by *= 2) {
    const float y = shuffle_up(x, by);
    x += lane_id() >= by ? y : 0;
  }
  if (lane_id() == 63) {
    sums[t / 64] = x;
  }
  __syncthreads();
  for (int w = 0; w < t / 64; ++w) {
    x += sums[w];
  }
  out[blockIdx.x * blockDim.x + t] = x;
}

// --- LDS -----------------------------------------------------------------------------------------

/// C = A B in tiles of 32 x 32, four results a thread, the next tile loaded ahead.
__global__ void tiled_product(const float* a, const float* b, float* c, int m, int n, int k) {
  __shared__ float ta[2][32][33];
  __shared__ float tb[2][32][33];
  const int x = threadIdx.x;
  const int y = threadIdx.y;
  float sum[4] = {};
  auto fill = [&](int stage, int at) {
    for (int j = 0; j < 4; ++j) {
      const int row = blockIdx.y * 32 + y + 8 * j;
      const int column = blockIdx.x * 32 + x;
      ta[stage][y + 8 * j][x] = row < m && at + x < k ? a[row * k + at + x] : 0;
      tb[stage][y + 8 * j][x] =
          column < n && at + y + 8 * j < k ? b[(at + y + 8 * j) * n + column] : 0;
    }
  };
  fill(0, 0);
  __syncthreads();
  int stage = 0;
  for (int at = 0; at < k; at += 32) {
    if (at + 32 < k) {
      fill(1 - stage, at + 32);
    }
    for (int j = 0; j < 32; ++j) {
      for (int r = 0; r < 4; ++r) {
        sum[r] += ta[stage][y + 8 * r][j] * tb[stage][j][x];
      }
    }
    __syncthreads();
    stage = 1 - stage;
  }
  for (int r = 0; r < 4; ++r) {
    const int row = blockIdx.y * 32 + y + 8 * r;
    const int column = blockIdx.x * 32 + x;
    if (row < m && column < n) {
      c[row * n + column] = sum[r];
    }
  }
}

/// Bytes transposed through LDS whose columns are permuted, not padded.
__global__ void transpose_bytes(const unsigned char* in, unsigned char* out, int n) {
  __shared__ unsigned char tile[64][64];
  const int r = blockIdx.y * 64;
  const int c = blockIdx.x * 64;
  for (int k = threadIdx.y; k < 64; k += blockDim.y) {
    tile[k][(threadIdx.x + 4 * k) % 64] = in[(r + k) * n + c + threadIdx.x];
  }
  __syncthreads();
  for (int k = threadIdx.y; k < 64; k += blockDim.y) {
    out[(c + k) * n + r + threadIdx.x] = tile[threadIdx.x][(k + 4 * threadIdx.x) % 64];
  }
}

/// Sorts 512 numbers in LDS (Batcher's bitonic sort).
__global__ void bitonic_sort(unsigned* data) {
  __shared__ unsigned x[512];
  const unsigned t = threadIdx.x;
  x[t] = data[blockIdx.x * 512 + t];
  x[t + 256] = data[blockIdx.x * 512 + t + 256];
  for (unsigned size = 2; size <= 512; size *= 2) {
    for (unsigned step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      const unsigned i = 2 * t - (t & (step - 1));
      const unsigned low = x[i];
      const unsigned high = x[i + step];
      if ((low > high) == ((i & size) == 0)) {
        x[i] = high;
        x[i + step] = low;
      }
    }
  }
  __syncthreads();
  data[blockIdx.x * 512 + t] = x[t];
  data[blockIdx.x * 512 + t + 256] = x[t + 256];
}

extern __shared__ int dynamic_lds[];

/// Counts in LDS of a size that the launch gives, then in 64-bit counters.
__global__ void histogram_64(const unsigned short* in, unsigned long* bins, int n, int count) {
  for (int k = threadIdx.x; k < count; k += blockDim.x) {
    dynamic_lds[k] = 0;
  }
  __syncthreads();
  FOR_ALL(i, n) {
    __scoped_atomic_fetch_add(&dynamic_lds[in[i] % count], 1, __ATOMIC_RELAXED,
                              __MEMORY_SCOPE_WRKGRP);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < count; k += blockDim.x) {
    atomicAdd(&bins[k], (unsigned long)dynamic_lds[k]);
  }
}

/// Seven points in three dimensions: a plane in LDS, its neighbours in registers.
__global__ void stencil_3d(const float* in, float* out, int nx, int ny, int nz) {
  __shared__ float plane[10][18];
  const int x = blockIdx.x * 16 + threadIdx.x;
  const int y = blockIdx.y * 8 + threadIdx.y;
  auto at = [&](int i, int j, int k) {
    const bool inside = i >= 0 && i < nx && j >= 0 && j < ny && k >= 0 && k < nz;
    return inside ? in[((long)k * ny + j) * nx + i] : 0.0f;
  };
  float below = 0;
  float here = at(x, y, 0);
  for (int k = 0; k < nz; ++k) {
    const float above = at(x, y, k + 1);
    __syncthreads();
    plane[threadIdx.y + 1][threadIdx.x + 1] = here;
    if (threadIdx.x == 0) {
      plane[threadIdx.y + 1][0] = at(x - 1, y, k);
    }
    if (threadIdx.x == 15) {
      plane[threadIdx.y + 1][17] = at(x + 1, y, k);
    }
    if (threadIdx.y == 0) {
      plane[0][threadIdx.x + 1] = at(x, y - 1, k);
    }
    if (threadIdx.y == 7) {
      plane[9][threadIdx.x + 1] = at(x, y + 1, k);
    }
    __syncthreads();
    if (x < nx && y < ny) {
      out[((long)k * ny + y) * nx + x] =
          plane[threadIdx.y + 1][threadIdx.x] + plane[threadIdx.y + 1][threadIdx.x + 2] +
          plane[threadIdx.y][threadIdx.x + 1] + plane[threadIdx.y + 2][threadIdx.x + 1] + below +
          above - 6 * here;
    }
    below = here;
    here = above;
  }
}

// --- matrices ------------------------------------------------------------------------------------

/// One wave: 16 x 16 and 32 x 32 products of halves, doubles and bytes. Rows of a and columns of b
/// lie along k.
__global__ void matrix_f16(const half* a, const half* b, float* c) {
  const int l = threadIdx.x;
  float4 sum = {};
  for (int k = 0; k < 64; k += 16) {
    half4 x = {};
    half4 y = {};
    for (int j = 0; j < 4; ++j) {
      x[j] = a[l % 16 * 64 + k + l / 16 * 4 + j];
      y[j] = b[l % 16 * 64 + k + l / 16 * 4 + j];
    }
    sum = __builtin_amdgcn_mfma_f32_16x16x16f16(x, y, sum, 0, 0, 0);
  }
  for (int j = 0; j < 4; ++j) {
    c[(l / 16 * 4 + j) * 16 + l % 16] = sum[j];
  }
}
__global__ void matrix_f16_32(const half* a, const half* b, float* c) {
  const int l = threadIdx.x;
  float16 sum = {};
  for (int k = 0; k < 64; k += 8) {
    half4 x = {};
    half4 y = {};
    for (int j = 0; j < 4; ++j) {
      x[j] = a[l % 32 * 64 + k + l / 32 * 4 + j];
      y[j] = b[l % 32 * 64 + k + l / 32 * 4 + j];
    }
    sum = __builtin_amdgcn_mfma_f32_32x32x8f16(x, y, sum, 0, 0, 0);
  }
  for (int j = 0; j < 16; ++j) {
    c[(j / 4 * 8 + l / 32 * 4 + j % 4) * 32 + l % 32] = sum[j];
  }
}
__global__ void matrix_f64(const double* a, const double* b, double* c) {
  const int l = threadIdx.x;
  double4 sum = {};
  for (int k = 0; k < 64; k += 4) {
    sum = __builtin_amdgcn_mfma_f64_16x16x4f64(a[l % 16 * 64 + k + l / 16],
                                               b[l % 16 * 64 + k + l / 16], sum, 0, 0, 0);
  }
  for (int j = 0; j < 4; ++j) {
    c[(j * 4 + l / 16) * 16 + l % 16] = sum[j];
  }
}
__global__ void matrix_i8(const long* a, const long* b, int* c) {
  const int l = threadIdx.x;
  int4 sum = {};
  for (int k = 0; k < 2; ++k) {
    sum = __builtin_amdgcn_mfma_i32_16x16x32_i8(a[l % 16 * 8 + k * 4 + l / 16],
                                                b[l % 16 * 8 + k * 4 + l / 16], sum, 0, 0, 0);
  }
  for (int j = 0; j < 4; ++j) {
    c[(l / 16 * 4 + j) * 16 + l % 16] = sum[j];
  }
}

// --- arithmetic ----------------------------------------------------------------------------------

/// Dot products of bytes and halves by their own instructions.
__global__ void dots(const int* a, const int* b, int* bytes, float* halves, int n) {
  FOR_ALL(i, n) {
    bytes[i] = __builtin_amdgcn_sdot4(a[i], b[i], i, false);
    // Below 1, and no denormals.
    const int x = (a[i] & 0x3bff3bff) | 0x04000400;
    const int y = (b[i] & 0x3bff3bff) | 0x04000400;
    halves[i] = __builtin_amdgcn_fdot2(__builtin_bit_cast(half2, x), __builtin_bit_cast(half2, y),
                                       1.0f, false);
  }
}

/// Pairs of numbers in packed instructions.
__global__ void packed(const half2* a, const half2* b, half2* h, const float2* x, const float2* y,
                       float2* f, int n) {
  FOR_ALL(i, n) {
    h[i] = a[i] * b[i] + __builtin_elementwise_max(a[i], b[i]) - (half2){1, 2};
    f[i] = __builtin_elementwise_fma(x[i], y[i], x[i].yx) + y[i] * (float2){2, -0.5f};
  }
}

/// The forces among bodies, in double, with literals of 64 bits.
__global__ void bodies(const double* x, const double* mass, double* force, int n) {
  FOR_ALL(i, n) {
    double f = 0;
    for (int j = 0; j < n; ++j) {
      const double d = x[j] - x[i];
      const double r2 = d * d + 1.2345678901234567e-3;
      f += 6.67430e-11 * mass[i] * mass[j] * d / (r2 * __builtin_elementwise_sqrt(r2));
    }
    force[i] = f;
  }
}

/// A hash of 64 bits, products of 128, carries, rotations.
__global__ void hashes(const unsigned long* in, unsigned long* out, int n) {
  FOR_ALL(i, n) {
    unsigned long z = in[i] + 0x9e3779b97f4a7c15ul;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    z ^= z >> 31;
    const unsigned __int128 wide = (unsigned __int128)z * in[i];
    unsigned long sum;
    const bool carry = __builtin_add_overflow(z, in[i], &sum);
    out[4 * i] = z;
    out[4 * i + 1] = (unsigned long)(wide >> 64);
    out[4 * i + 2] = sum + carry;
    out[4 * i + 3] = (z << (i % 64) | z >> ((64 - i % 64) % 64)) / (in[i] | 1) + z % 1000003;
  }
}

/// Bits: reversed, counted, found, extracted, shuffled by bytes.
__global__ void bits(const unsigned* in, unsigned* out, int n) {
  FOR_ALL(i, n) {
    const unsigned x = in[i];
    const unsigned y = in[(i + 1) % n];
    out[8 * i] = __builtin_bitreverse32(x);
    out[8 * i + 1] = __builtin_popcount(x) + 100 * (x == 0 ? 32 : __builtin_clz(x));
    out[8 * i + 2] = x == 0 ? 32 : __builtin_ctz(x);
    out[8 * i + 3] = x >> (y % 32) & ((1u << (y % 31)) - 1);
    out[8 * i + 4] = __builtin_bswap32(x);
    out[8 * i + 5] = __builtin_amdgcn_alignbit(x, y, 7);
    out[8 * i + 6] = __builtin_amdgcn_perm(x, y, 0x07020500);
    out[8 * i + 7] = __builtin_amdgcn_sad_u8(x, y, 5);
  }
}

/// Assembler in the middle of C++.
__global__ void assembler(const unsigned* in, unsigned* out, int n) {
  FOR_ALL(i, n) {
    unsigned a = in[i];
    unsigned r;
    asm("v_add3_u32 %0, %1, %2, 7" : "=v"(r) : "v"(a), "v"(i));
    unsigned s;
    asm volatile("s_mul_i32 %0, %1, 3\n\ts_add_u32 %0, %0, 11"
                 : "=s"(s)
                 : "s"(__builtin_amdgcn_readfirstlane(n))
                 : "scc");
    asm("v_xor_b32 %0, 0x12345678, %1\n\tv_lshl_add_u32 %0, %0, 2, %2" : "=&v"(a) : "v"(a), "v"(r));
    out[i] = a + s;
  }
}

/// As compilers join masks of lanes where control flow meets: what other lanes have of the mask was
/// never written.
__global__ void joined_masks(int* out) {
  int x = 1;
  if (threadIdx.x % 64 >= 32) {
    asm volatile(
        "s_andn2_b64 s[40:41], s[40:41], exec\n"
        "s_lshl_b64 vcc, exec, 16\n"
        "s_or_b64 s[40:41], s[40:41], vcc\n"
        "s_cselect_b64 s[40:41], s[40:41], s[40:41]\n"
        "v_cndmask_b32 %0, 5, 7, s[40:41]"
        : "=v"(x)::"s40", "s41", "vcc", "scc");
  }
  out[threadIdx.x] = x;
}

// --- control flow --------------------------------------------------------------------------------

/// Loops that lanes leave at different times, by break, continue and return.
__global__ void divergent(const int* in, int* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) {
    return;
  }
  int found = -1;
  int steps = 0;
  for (int a = 1; a < 40 && found < 0; ++a) {
    if (a % 3 == in[i] % 3) {
      continue;
    }
    for (int b = a; b < 40; ++b) {
      ++steps;
      if (a * b == in[i]) {
        found = a * 100 + b;
        break;
      }
      if (a * b > in[i]) {
        break;
      }
    }
  }
  if (found < 0) {
    out[i] = -steps;
    return;
  }
  while (found % 7 != 0) {
    found += steps | 1;
    if (found > 100000) {
      out[i] = found;
      return;
    }
  }
  out[i] = found;
}

/// A program for a machine with a stack: a large switch.
__global__ void interpreter(const unsigned char* code, const int* in, int* out, int n) {
  FOR_ALL(i, n) {
    int stack[8] = {};
    int top = 0;
    int pc = i % 3;
    for (int count = 0; count < 200; ++count) {
      const int op = code[pc++];
      int& a = stack[(top + 7) % 8];
      int& b = stack[(top + 6) % 8];
      switch (op) {
        case 0:
          stack[top++ % 8] = in[i];
          break;
        case 1:
          stack[top++ % 8] = code[pc++];
          break;
        case 2:
          b += a;
          --top;
          break;
        case 3:
          b -= a;
          --top;
          break;
        case 4:
          b *= a;
          --top;
          break;
        case 5:
          b ^= a;
          --top;
          break;
        case 6:
          a = -a;
          break;
        case 7:
          a = a < 0 ? -a : a;
          break;
        case 8: {
          const int t = a;
          a = b;
          b = t;
          break;
        }
        case 9:
          stack[top % 8] = a;
          ++top;
          break;
        case 10:
          a >>= 1;
          break;
        case 11:
          if (a > 0) {
            pc += 2;
          }
          break;
        case 12:
          b = b < a ? b : a;
          --top;
          break;
        case 13:
          a &= 0xffff;
          break;
        default:
          count = 1000;
          break;
      }
      top = (top + 8) % 8;
    }
    out[i] = stack[(top + 7) % 8];
  }
}

/// Functions that call themselves.
__attribute__((noinline)) __device__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__attribute__((noinline)) __device__ void quick_sort(int* x, int low, int high) {
  if (low >= high) {
    return;
  }
  int middle = low;
  for (int k = low; k < high; ++k) {
    if (x[k] < x[high]) {
      const int t = x[k];
      x[k] = x[middle];
      x[middle++] = t;
    }
  }
  const int t = x[high];
  x[high] = x[middle];
  x[middle] = t;
  quick_sort(x, low, middle - 1);
  quick_sort(x, middle + 1, high);
}
__global__ void recursion(int* data, int* numbers, int n) {
  FOR_ALL(i, n) {
    numbers[i] = fibonacci(i % 12);
    quick_sort(data + 16 * i, 0, 15);
  }
}

/// Functions that are called through pointers, different ones from different lanes.
__attribute__((noinline)) __device__ int twice(int x) { return 2 * x; }
__attribute__((noinline)) __device__ int square(int x) { return x * x; }
__attribute__((noinline)) __device__ int negative(int x) { return -x; }
__device__ int (*const functions[])(int) = {twice, square, negative};
__global__ void indirect_calls(const int* which, int* data, int n) {
  FOR_ALL(i, n) { data[i] = functions[which[i] % 3](data[i]) + functions[i % 2](1); }
}

struct Shape {
  __device__ virtual int area() const { return 0; }
  int a;
  int b;
};
struct Square : Shape {
  __device__ int area() const override { return a * a; }
};
struct Rectangle : Shape {
  __device__ int area() const override { return a * b; }
};
__global__ void virtual_calls(const int* in, int* out, int n) {
  FOR_ALL(i, n) {
    Square s;
    Rectangle r;
    s.a = r.a = in[i];
    s.b = r.b = i;
    const Shape* shape = in[i] % 2 != 0 ? static_cast<const Shape*>(&s) : &r;
    out[i] = shape->area();
  }
}

/// A stack array whose size is known only when it runs.
__global__ void variable_array(const int* in, int* out, int n) {
  FOR_ALL(i, n) {
    const int size = __builtin_amdgcn_readfirstlane(in[0]) % 16 + 4;
    int* stack = (int*)__builtin_alloca(size * sizeof(int));
    for (int k = 0; k < size; ++k) {
      stack[k] = in[(i + k) % n];
    }
    int sum = 0;
    for (int k = 0; k < size; ++k) {
      sum = 31 * sum + stack[stack[k] % size < 0 ? 0 : stack[k] % size];
    }
    out[i] = sum;
  }
}

// --- memory --------------------------------------------------------------------------------------

struct Argument {
  char tag;
  double weight;
  short table[5];
  const float* in;
  struct {
    unsigned char low;
    long high;
  } inner;
};
__constant__ float coefficients[8] = {1, -1, 0.5f, -0.25f, 2, 4, -8, 3};

/// A struct by value, with holes and an array that is indexed; constant memory.
__global__ void structures(Argument x, float* out, int n) {
  FOR_ALL(i, n) {
    out[i] = (float)(x.weight * x.in[i]) + x.table[i % 5] * coefficients[i % 8] + x.tag +
             (float)(x.inner.high - x.inner.low);
  }
}

/// Bytes and shorts at any address, and copies of structs.
struct Odd {
  unsigned char bytes[7];
};
__global__ void odd_copies(const unsigned char* in, Odd* out, unsigned short* shorts, int n) {
  FOR_ALL(i, n) {
    Odd x;
    __builtin_memcpy(&x, in + 5 * i + 1, 7);
    x.bytes[3] ^= x.bytes[6];
    out[i] = x;
    unsigned short s;
    __builtin_memcpy(&s, in + 3 * i, 2);
    shorts[i] = s;
  }
}

/// Every kind of atomic on a few words.
__global__ void atomic_kinds(const int* in, int* ints, unsigned* wraps, float* floats,
                             double* doubles, int n) {
  FOR_ALL(i, n) {
    const int x = in[i];
    __scoped_atomic_fetch_max(&ints[0], x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    __scoped_atomic_fetch_min(&ints[1], x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    __scoped_atomic_fetch_xor(&ints[2], x, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
    __scoped_atomic_fetch_or(&ints[3], x, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);
    __scoped_atomic_fetch_and(&ints[4], x | 1, __ATOMIC_SEQ_CST, __MEMORY_SCOPE_SYSTEM);
    __scoped_atomic_fetch_sub(&ints[5], x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    __builtin_amdgcn_atomic_inc32(&wraps[0], 9u, __ATOMIC_RELAXED, "agent");
    __builtin_amdgcn_atomic_dec32(&wraps[1], 9u, __ATOMIC_RELAXED, "agent");
    // A product by compare and swap.
    unsigned old = __scoped_atomic_load_n(&wraps[2], __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    while (!__scoped_atomic_compare_exchange_n(&wraps[2], &old, old * (2u * x + 1), true,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __MEMORY_SCOPE_DEVICE)) {
    }
    atomicAdd(floats, (float)(x % 8));
    atomicAdd(doubles, (double)x);
  }
}

// --- between workgroups --------------------------------------------------------------------------

/// A lock that waves take in turn, sleeping while they wait.
__global__ void spin_lock(unsigned* lock, unsigned* value, int times) {
  for (int k = 0; k < times; ++k) {
    if (lane_id() == 0) {
      while (__scoped_atomic_exchange_n(lock, 1u, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) != 0) {
        __builtin_amdgcn_s_sleep(2);
      }
      *value = *value * 5 + 1;
      __scoped_atomic_store_n(lock, 0u, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
    }
  }
}

__device__ void grid_barrier(unsigned* arrived, unsigned* sense) {
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = __scoped_atomic_load_n(sense, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
    if (__scoped_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE) ==
        grid_dim_x() - 1) {
      __scoped_atomic_store_n(arrived, 0u, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
      __scoped_atomic_fetch_add(sense, 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
    } else {
      while (__scoped_atomic_load_n(sense, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) == before) {
        __builtin_amdgcn_s_sleep(1);
      }
    }
  }
  __syncthreads();
}

/// Odd-even transposition sort of the whole grid, a barrier a step.
__global__ void grid_sort(int* data, unsigned* arrived, unsigned* sense, int n) {
  for (int step = 0; step < n; ++step) {
    const int i = 2 * (int)(blockIdx.x * blockDim.x + threadIdx.x) + step % 2;
    if (i + 1 < n && data[i] > data[i + 1]) {
      const int t = data[i];
      data[i] = data[i + 1];
      data[i + 1] = t;
    }
    grid_barrier(arrived, sense);
  }
}

/// Sums that each workgroup hands to the next.
__global__ void chained_scan(const int* in, int* out, int* sums, unsigned* flags) {
  __shared__ int before;
  __shared__ int x[256];
  const int t = threadIdx.x;
  const int b = blockIdx.x;
  x[t] = in[b * 256 + t];
  __syncthreads();
  for (int by = 1; by < 256; by *= 2) {
    const int y = t >= by ? x[t - by] : 0;
    __syncthreads();
    x[t] += y;
    __syncthreads();
  }
  if (t == 0) {
    before = 0;
    if (b > 0) {
      while (__scoped_atomic_load_n(&flags[b - 1], __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE) == 0) {
        __builtin_amdgcn_s_sleep(1);
      }
      before = sums[b - 1];
    }
    sums[b] = before + x[255];
    __scoped_atomic_store_n(&flags[b], 1u, __ATOMIC_RELEASE, __MEMORY_SCOPE_DEVICE);
  }
  __syncthreads();
  out[b * 256 + t] = x[t] + before;
}

/// Tasks from a queue, one wave at a time, until none is left.
__global__ void task_queue(unsigned* next, const int* in, int* out, int tasks) {
  for (;;) {
    unsigned task = 0;
    if (lane_id() == 0) {
      task = atomicAdd(next, 1u);
    }
    task = __builtin_amdgcn_readfirstlane(task);
    if (task >= (unsigned)tasks) {
      return;
    }
    int x = in[task * 64 + lane_id()];
    for (int by = 32; by > 0; by /= 2) {
      const int y = shuffle(x, lane_id() ^ by);
      x = x > y ? x : y;
    }
    out[task] = x;  // by all lanes: no control flow parts them before the next task is taken
  }
}

}  // extern "C"
