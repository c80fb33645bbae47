#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>

#include "base/scaling.h"
#include "engine/hopper/weights_kernel.h"
#include "ops/linear/forms/fp8/hopper_pack.cuh"
#include "ops/linear/forms/mxfp4/hopper_pack.cuh"
#include "ops/linear/forms/packed/hopper_pack.cuh"
#include "ops/linear/forms/plain/hopper_pack.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__device__ void store_four(const float (&x)[4], float* out) {
  *reinterpret_cast<float4*>(out) = {x[0], x[1], x[2], x[3]};
}
__device__ void store_four(const float (&x)[4], __nv_bfloat16* out) {
  reinterpret_cast<__nv_bfloat162*>(out)[0] = __floats2bfloat162_rn(x[0], x[1]);
  reinterpret_cast<__nv_bfloat162*>(out)[1] = __floats2bfloat162_rn(x[2], x[3]);
}
__device__ void store_four(const float (&x)[4], __half* out) {
  reinterpret_cast<__half2*>(out)[0] = __floats2half2_rn(x[0], x[1]);
  reinterpret_cast<__half2*>(out)[1] = __floats2half2_rn(x[2], x[3]);
}
__device__ void store_four(const float (&x)[4], __nv_fp8_e4m3* out) {
  *reinterpret_cast<__nv_fp8x4_e4m3*>(out) = __nv_fp8x4_e4m3(float4{x[0], x[1], x[2], x[3]});
}

template <class T>
__global__ void fill_random_kernel(RandomTensor tensor, int64_t groups, T* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < groups;
       i += int64_t{kThreads} * gridDim.x) {
    const uint64_t bits = mix(tensor.key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull);
    float x[4];
    for (int j = 0; j < 4; ++j) {
      const int integer = 2 * static_cast<int>(bits >> (16 * j) & 0xffff) - 65535;
      x[j] = static_cast<float>(integer + tensor.offset) * tensor.scale;
    }
    store_four(x, out + 4 * i);
  }
}

/// What a code stands for, as products of the resident kernel have it.
__device__ float number_of(uint32_t code) {
  return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20) * 0x1p120f;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    widen_kernel(const uint32_t* codes, const float* scales, ScaleGrid grid, int64_t rows,
                 int row_quads, T* out) {
  const int64_t quads = rows * row_quads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < quads;
       i += int64_t{kThreads} * gridDim.x) {
    const int64_t row = i / row_quads;
    const float scale = scales[grid.index(row, (i - row * row_quads) * 4 / kScaleBlock)];
    const uint32_t four = codes[i];
    const float x[4] = {scale * number_of(four & 0xff), scale * number_of(four >> 8 & 0xff),
                        scale * number_of(four >> 16 & 0xff), scale * number_of(four >> 24)};
    store_four(x, out + 4 * i);
  }
  // Before the block ends: the next kernel may begin then, and its copies read at once.
  __threadfence();
  asm volatile("fence.proxy.async;" ::: "memory");
}

/// A block a unit.
__global__ void __launch_bounds__(kPackThreads)
    unpack_kernel(const PackJob* jobs, const char* packed, char* arena) {
  const PackJob& job = jobs[blockIdx.x];
  const Unit unit(job, arena);
  if (job.form == StreamForm::fp8) {
    unpack(Fp8Form{}, unit, packed, arena);
  } else if (job.form == StreamForm::compressed) {
    unpack(PackedForm{}, unit, packed, arena);
  } else if (job.form == StreamForm::mx) {
    unpack(MxForm{}, unit, packed, arena);
  } else {
    unpack(PlainForm{}, unit, packed, arena);
  }
}

/// A block a unit.
__global__ void __launch_bounds__(kPackThreads)
    pack_kernel(const PackJob* jobs, const char* arena, char* packed, uint32_t* refused) {
  const PackJob& job = jobs[blockIdx.x];
  const Unit unit(job, arena);
  if (job.form == StreamForm::fp8) {
    pack(Fp8Form{}, unit, packed);
  } else if (job.form == StreamForm::compressed) {
    pack(PackedForm{}, unit, packed, refused + job.operation);
  } else if (job.form == StreamForm::mx) {
    pack(MxForm{}, unit, packed);
  } else {
    pack(PlainForm{}, unit, packed);
  }
}

}  // namespace

cudaError_t launch_fill_random(const RandomTensor& tensor, DType type, int64_t elements, void* out,
                               cudaStream_t stream) {
  const int64_t groups = elements / 4;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(65536, (groups + kThreads - 1) / kThreads));
  const auto fill = [&](auto* to) {
    fill_random_kernel<<<blocks, kThreads, 0, stream>>>(tensor, groups, to);
  };
  if (type == DType::bf16) {
    fill(static_cast<__nv_bfloat16*>(out));
  } else if (type == DType::f16) {
    fill(static_cast<__half*>(out));
  } else if (type == DType::e4m3fn) {
    fill(static_cast<__nv_fp8_e4m3*>(out));
  } else {
    fill(static_cast<float*>(out));
  }
  return cudaGetLastError();
}

cudaError_t launch_unpack(const PackJob* jobs, int64_t count, const char* packed, char* arena,
                          cudaStream_t stream) {
  unpack_kernel<<<static_cast<unsigned>(count), kPackThreads, 0, stream>>>(jobs, packed, arena);
  return cudaGetLastError();
}

cudaError_t launch_pack(const PackJob* jobs, int64_t count, const char* arena, char* packed,
                        uint32_t* refused, cudaStream_t stream) {
  pack_kernel<<<static_cast<unsigned>(count), kPackThreads, 0, stream>>>(jobs, arena, packed,
                                                                         refused);
  return cudaGetLastError();
}

cudaError_t launch_widen(const void* codes, const float* scales, const ScaleGrid& grid,
                         int64_t rows, int64_t columns, DType type, void* out,
                         cudaStream_t stream) {
  const int64_t quads = rows * columns / 4;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(4096, (quads + kThreads - 1) / kThreads));
  const auto widen = [&](auto* to) {
    widen_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint32_t*>(codes), scales, grid,
                                                  rows, static_cast<int>(columns / 4), to);
  };
  if (type == DType::bf16) {
    widen(static_cast<__nv_bfloat16*>(out));
  } else {
    widen(static_cast<float*>(out));
  }
  return cudaGetLastError();
}

}  // namespace weft::hopper
