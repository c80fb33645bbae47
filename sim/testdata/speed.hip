// Loops of one kind of instruction each, to tell how many of them the simulator does in a second.
#include "sim/testdata/hip.h"

namespace {
using f32x4 = float __attribute__((ext_vector_type(4)));
constexpr int kTurns = 2000;
}  // namespace

extern "C" {

/// Ordinary vector arithmetic: sixteen values, each updated by floats, integers and a selection.
__global__ void vectors(float* out) {
  float x[8];
  unsigned y[8];
  for (int k = 0; k < 8; ++k) {
    x[k] = static_cast<float>(threadIdx.x + k);
    y[k] = threadIdx.x * 77u + k;
  }
  for (int i = 0; i < kTurns; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      x[k] = __builtin_fmaf(x[k], 0.5f, x[(k + 1) % 8]);
      y[k] = (y[k] ^ y[(k + 3) % 8]) + 0x9e3779b9u;
      x[k] = y[k] < 0x80000000u ? x[k] : x[k] + 1.0f;
    }
  }
  float sum = 0;
  for (int k = 0; k < 8; ++k) {
    sum += x[k] + static_cast<float>(y[k]);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

/// v_mfma_f32_16x16x32_fp8_fp8, eight independent sums.
__global__ void matrices(float* out) {
  f32x4 sum[8] = {};
  long a = 0x3840383838383838L + threadIdx.x;
  const long b = 0x3838403838384038L;
  for (int i = 0; i < kTurns; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      sum[k] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, sum[k], 0, 0, 0);
    }
  }
  f32x4 total = {};
  for (int k = 0; k < 8; ++k) {
    total += sum[k];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = total[0] + total[1] + total[2] + total[3];
}
}
