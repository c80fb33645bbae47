// Kernels in which the compiler has to keep instructions apart: results that are wanted at once, by
// every kind of instruction that would get them too early (sim/hazards.h).
#include "sim/testdata/hip.h"

typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef _Float16 Half2 __attribute__((ext_vector_type(2)));
typedef _Float16 Half8 __attribute__((ext_vector_type(8)));
typedef float Float2 __attribute__((ext_vector_type(2)));
typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float16 __attribute__((ext_vector_type(16)));
typedef float Float32 __attribute__((ext_vector_type(32)));
typedef double Double4 __attribute__((ext_vector_type(4)));
typedef int Int4 __attribute__((ext_vector_type(4)));
typedef __attribute__((address_space(3))) void LdsPointer;
typedef __attribute__((address_space(1))) void GlobalPointer;

#define MFMA(kind) __builtin_amdgcn_mfma_##kind

/// A result read as A by the next, added to, stored, and kept in shared memory.
#define MATRIX(name, D, AB, mfma)                                    \
  extern "C" __global__ void name(const AB* in, D* out, int turns) { \
    __shared__ D kept[64];                                           \
    const AB a = in[threadIdx.x];                                    \
    const AB b = in[threadIdx.x + 64];                               \
    D d = out[threadIdx.x];                                          \
    for (int turn = 0; turn < turns; ++turn) {                       \
      const D e = mfma(a, b, d, 0, 0, 0);                            \
      AB next;                                                       \
      __builtin_memcpy(&next, &e, sizeof next);                      \
      const D f = mfma(next, b, e, 0, 0, 0);                         \
      kept[threadIdx.x] = f;                                         \
      d = mfma(a, next, f, 0, 0, 0) + e;                             \
      out[threadIdx.x + 64 * turn] = d;                              \
      d = d * d;                                                     \
      out[threadIdx.x + 64 * turn + 1] = mfma(a, b, d, 0, 0, 0);     \
    }                                                                \
    out[threadIdx.x] = kept[threadIdx.x ^ 1];                        \
  }
MATRIX(xdl2, Float4, Half4, MFMA(f32_4x4x4f16))
MATRIX(xdl4, Float4, Half4, MFMA(f32_16x16x16f16))
MATRIX(xdl8, Float16, Half4, MFMA(f32_32x32x8f16))
MATRIX(xdl16, Float32, Half4, MFMA(f32_32x32x4f16))
MATRIX(sgemm2, Float4, float, MFMA(f32_4x4x1f32))
MATRIX(sgemm8, Float4, float, MFMA(f32_16x16x4f32))
MATRIX(sgemm16, Float16, float, MFMA(f32_32x32x2f32))
MATRIX(dgemm4, double, double, MFMA(f64_4x4x4f64))
MATRIX(dgemm16, Double4, double, MFMA(f64_16x16x4f64))

extern "C" __global__ void sparse(const Half4* in, const Half8* more, Float4* out,
                                  const int* index) {
  Float4 d = out[threadIdx.x];
  d = __builtin_amdgcn_smfmac_f32_16x16x32_f16(in[threadIdx.x], more[threadIdx.x], d,
                                               index[threadIdx.x], 0, 0);
  const int chosen = __builtin_bit_cast(int, d.x);
  d = __builtin_amdgcn_smfmac_f32_16x16x32_f16(in[threadIdx.x + 1], more[threadIdx.x], d, chosen, 0,
                                               0);
  out[threadIdx.x] = d;
}

extern "C" __global__ void f64_after_matrix(const double* in, double* out) {
  const double x = in[threadIdx.x];
  const double d = MFMA(f64_4x4x4f64)(x, in[threadIdx.x + 64], 0.0, 0, 0, 0);
  out[threadIdx.x] = __builtin_fma(x, x, in[threadIdx.x + 128]);
  out[threadIdx.x + 64] = __builtin_fma(d, x, x);
}

/// Lanes and scalars: what one lane has becomes an address, a lane's number, a value.
extern "C" __global__ void lanes(const int* in, int* out, const int* const* tables) {
  int x = in[threadIdx.x] * 3 + 1;
  const int first = __builtin_amdgcn_readfirstlane(x);
  const int chosen = __builtin_amdgcn_readlane(x, first & 63);
  const int again = __builtin_amdgcn_readlane(x + 1, chosen & 63);
  const int* table = tables[again & 3];
  x += table[threadIdx.x & 63] + chosen;
  const unsigned long ballot = __builtin_amdgcn_ballot_w64(x > chosen);
  if (ballot != 0) {
    x += __builtin_popcountl(ballot) + (x > 3 ? chosen : again);
  }
  out[threadIdx.x + __builtin_amdgcn_readfirstlane(x)] = x;
}

extern "C" __global__ void moved_lanes(const float* in, float* out) {
  float x = in[threadIdx.x] * 2.5F;
  for (int turn = 0; turn < 3; ++turn) {
    int bits = __builtin_bit_cast(int, x);
    bits = __builtin_amdgcn_update_dpp(bits, bits, 0xb1, 15, 15, false);
    bits = __builtin_amdgcn_update_dpp(0, bits + 1, 0x111, 15, 15, false);
    x += __builtin_bit_cast(float, bits);
    bits = __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, x), 0x140, 15, 15, true);
    x = x * __builtin_bit_cast(float, bits) + __builtin_amdgcn_rcpf(x);
#ifdef __gfx950__
    const auto swapped = __builtin_amdgcn_permlane32_swap(bits, bits + 3, false, false);
    x += __builtin_bit_cast(float, swapped[0]);
    const auto rows =
        __builtin_amdgcn_permlane16_swap(__builtin_bit_cast(int, x), bits, false, false);
    x += __builtin_bit_cast(float, rows[1]);
#endif
  }
  out[threadIdx.x] = x;
}

extern "C" __global__ void divisions(const float* a, const double* b, float* c, double* d, int n) {
  for (int k = threadIdx.x; k < n; k += 64) {
    c[k] = a[k] / a[k + n] + __builtin_amdgcn_exp2f(a[k]) / __builtin_amdgcn_sqrtf(a[k + 1]);
    d[k] = b[k] / b[k + n] - __builtin_amdgcn_rsq(b[k]);
  }
}

/// Parts of registers, and what the halves of a result are used for at once.
extern "C" __global__ void parts(const unsigned char* in, const Half2* halves, Half2* out,
                                 unsigned short* more, int* packed) {
  const int k = threadIdx.x;
  unsigned short x = in[k] * in[k + 1] + in[k + 2];
  x = (x >> 3) + (unsigned short)(in[k + 3] << 2);
  more[k] = x + in[k + 4];
  Half2 h = halves[k] * halves[k + 1];
  h.y = h.x * halves[k + 2].y + h.y;
  h = h + Half2{h.y, h.x};
  out[k] = h;
  int word = 0;
  word = __builtin_amdgcn_cvt_pk_fp8_f32((float)h.x, (float)h.y, word, true);
  word = __builtin_amdgcn_cvt_pk_fp8_f32((float)h.y, (float)h.x, word, false);
  word = __builtin_amdgcn_cvt_sr_fp8_f32((float)h.x, x, word, 2);
  word = word + __builtin_amdgcn_cvt_sr_bf8_f32((float)h.y, word, word, 1);
#ifdef __gfx950__
  word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, (float)h.x, (float)h.y, 2.0F, 1) * 3;
#endif
  packed[k] = word;
}

extern "C" __global__ void dots(const Half2* in, const int* bytes, float* out, int* sums) {
  const int k = threadIdx.x;
  float x = __builtin_amdgcn_fdot2(in[k], in[k + 1], 1.0F, false);
  x = __builtin_amdgcn_fdot2(in[k + 2], in[k + 3], x, false);
  out[k] = x;
  const Half2 both = __builtin_bit_cast(Half2, x);
  out[k + 64] = __builtin_amdgcn_fdot2(both, in[k], x + 1, false);
  int n = __builtin_amdgcn_sdot4(bytes[k], bytes[k + 1], 0, false);
  n = __builtin_amdgcn_sdot4(n, bytes[k + 1], n, false);
  sums[k] = n + __builtin_amdgcn_sdot8(n, bytes[k], 1, false);
}

/// Stores of four words whose registers are written again at once.
extern "C" __global__ void wide_stores(Float4* out, const Float4* in, int n) {
  Float4 x = in[threadIdx.x];
  for (int k = 0; k < n; ++k) {
    out[64 * k + threadIdx.x] = x;
    x = x * 3.0F + 1.0F;
    out[64 * (k + n) + threadIdx.x] = x;
    x.w = x.x;
  }
}

extern "C" __global__ void straight_to_lds(const int* in, int* out) {
  __shared__ int data[256];
  for (int k = 0; k < 4; ++k) {
    __builtin_amdgcn_global_load_lds((GlobalPointer*)(in + 64 * k + threadIdx.x),
                                     (LdsPointer*)(data + 64 * k), 4, 0, 0);
  }
  __builtin_amdgcn_s_waitcnt(0);
  out[threadIdx.x] = data[threadIdx.x ^ 3] + data[192 + threadIdx.x];
}

/// MODE changed and asked for; a table in registers that a scalar indexes.
extern "C" __global__ void modes(const float* in, float* out, int at) {
  float table[12];
  for (int k = 0; k < 12; ++k) {
    table[k] = in[k] * in[k + 1];
  }
  __builtin_amdgcn_s_setreg(1 | 0 << 6 | 3 << 11, 3);
  const float x = table[__builtin_amdgcn_readfirstlane(at)] + in[threadIdx.x];
  __builtin_amdgcn_s_setreg(1 | 0 << 6 | 3 << 11, 0);
  const unsigned mode = __builtin_amdgcn_s_getreg(1 | 0 << 6 | 7 << 11);
  out[threadIdx.x] = x + static_cast<float>(mode);
}

static __device__ __attribute__((noinline)) float called(float x, const float* in) {
  return x / in[__builtin_amdgcn_readfirstlane(static_cast<int>(x)) & 7];
}
extern "C" __global__ void calls(const float* in, float* out) {
  out[threadIdx.x] = called(in[threadIdx.x], in) + called(in[threadIdx.x + 1] * 2, in + 1);
}
