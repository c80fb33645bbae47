// Products of a warpgroup whose A is transposed: weights that lie as [in, out], which are the long
// side of the product. PTX ISA 8.5, "wgmma.mma_async", "Strides".
#pragma once

#include <cstdint>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/wgmma.cuh"

namespace weft::hopper {

/// d = a b + (accumulate ? d : 0) in f16 for N columns; a's 64 rows lie side by side, 16 of k one
/// below the other, as transposed_descriptor() says.
template <int kN>
__device__ void wgmma_columns(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate);

#define WEFT_WGMMA_COLUMNS(N, A, B, P)                                                 \
  template <>                                                                          \
  __device__ inline void wgmma_columns<N>(float(&d)[N / 2], uint64_t a, uint64_t b,    \
                                          bool accumulate) {                           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                               \
                 ", 0;\n"                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" WEFT_S_##N \
                 "}, %" #A ", %" #B ", p, 1, 1, 1, 0;\n}"                              \
                 : WEFT_D_##N                                                          \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                 \
  }
WEFT_WGMMA_COLUMNS(64, 32, 33, 34)
WEFT_WGMMA_COLUMNS(96, 48, 49, 50)
WEFT_WGMMA_COLUMNS(128, 64, 65, 66)
WEFT_WGMMA_COLUMNS(144, 72, 73, 74)
WEFT_WGMMA_COLUMNS(160, 80, 81, 82)
WEFT_WGMMA_COLUMNS(176, 88, 89, 90)
WEFT_WGMMA_COLUMNS(192, 96, 97, 98)
#undef WEFT_WGMMA_COLUMNS

}  // namespace weft::hopper
