// The products of a warpgroup (wgmma): D[64, N] (+)= A[64, K] B[N, K], A and B in shared memory,
// K-major with the 128-byte swizzle, D in registers as accumulator_coordinate() says. PTX ISA 8.5,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
#pragma once

#include <cstdint>

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/layout.h"

namespace weft::hopper {

/// Describes a tile of 128-byte rows, swizzled, aligned to 1024 bytes ("Matrix Descriptor Format"):
/// the address in units of 16 bytes, 1024 bytes from 8 rows to the next 8, layout 1 (128-byte
/// swizzle). The start may move along the row by whole 32 bytes: see advance().
__device__ inline uint64_t tile_descriptor(const void* tile) {
  // (A sum in the low half, so that compilers take it together with what is added to it.)
  return uint64_t{(smem_address(tile) >> 4) + (1 << 16)} | uint64_t{kSwizzleBytes >> 4} << 32 |
         uint64_t{1} << 62;
}
/// The same tile from `steps` times kBytes further on: along k by multiples of 32 within the
/// 128-byte row, or by whole swizzle patterns of 8 rows. (No shift stands between the steps and
/// what is added to them, as the products of a small tile wait for their descriptors.)
template <uint32_t kBytes>
__device__ inline uint64_t advance_steps(uint64_t descriptor, uint32_t steps) {
  static_assert(kBytes % 16 == 0);
  // The address is in the low half and does not carry: 32-bit arithmetic stays in uniform
  // registers.
  return (descriptor & 0xffffffff00000000) |
         (static_cast<uint32_t>(descriptor) + steps * (kBytes / 16));
}
/// The same by `bytes`.
__device__ inline uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return advance_steps<16>(descriptor, bytes >> 4);
}

/// Before the first product of a batch: registers and shared memory are as the program left them.
__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Ends a batch of products.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all but the last kBatches batches.
template <int kBatches>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kBatches) : "memory");
}
/// Keeps the compiler from moving uses of registers that a product in flight owns.
template <int kCount>
__device__ void hold(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(registers[i])::"memory");
  }
}

/// Element formats of A and B.
struct Bf16 {
  static constexpr int kBytes = 2;
};
struct E4m3 {
  static constexpr int kBytes = 1;
};
/// Every product takes 32 bytes of each row of A and B.
inline constexpr int kWgmmaRowBytes = 32;

/// d = a b + (accumulate ? d : 0) for N columns.
template <class Format, int kN>
__device__ void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b, bool accumulate);

// The registers of a result, four at a time, as the assembler text and the compiler name them.
#define WEFT_S0 "%0, %1, %2, %3"
#define WEFT_D0 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WEFT_S1 "%4, %5, %6, %7"
#define WEFT_D1 "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WEFT_S2 "%8, %9, %10, %11"
#define WEFT_D2 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define WEFT_S3 "%12, %13, %14, %15"
#define WEFT_D3 "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WEFT_S4 "%16, %17, %18, %19"
#define WEFT_D4 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define WEFT_S5 "%20, %21, %22, %23"
#define WEFT_D5 "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WEFT_S6 "%24, %25, %26, %27"
#define WEFT_D6 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define WEFT_S7 "%28, %29, %30, %31"
#define WEFT_D7 "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WEFT_S8 "%32, %33, %34, %35"
#define WEFT_D8 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define WEFT_S9 "%36, %37, %38, %39"
#define WEFT_D9 "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WEFT_S10 "%40, %41, %42, %43"
#define WEFT_D10 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define WEFT_S11 "%44, %45, %46, %47"
#define WEFT_D11 "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WEFT_S12 "%48, %49, %50, %51"
#define WEFT_D12 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define WEFT_S13 "%52, %53, %54, %55"
#define WEFT_D13 "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WEFT_S14 "%56, %57, %58, %59"
#define WEFT_D14 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define WEFT_S15 "%60, %61, %62, %63"
#define WEFT_D15 "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WEFT_S16 "%64, %65, %66, %67"
#define WEFT_D16 "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define WEFT_S17 "%68, %69, %70, %71"
#define WEFT_D17 "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WEFT_S18 "%72, %73, %74, %75"
#define WEFT_D18 "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define WEFT_S19 "%76, %77, %78, %79"
#define WEFT_D19 "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WEFT_S20 "%80, %81, %82, %83"
#define WEFT_D20 "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define WEFT_S21 "%84, %85, %86, %87"
#define WEFT_D21 "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WEFT_S22 "%88, %89, %90, %91"
#define WEFT_D22 "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define WEFT_S23 "%92, %93, %94, %95"
#define WEFT_D23 "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WEFT_S24 "%96, %97, %98, %99"
#define WEFT_D24 "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define WEFT_S25 "%100, %101, %102, %103"
#define WEFT_D25 "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WEFT_S26 "%104, %105, %106, %107"
#define WEFT_D26 "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define WEFT_S27 "%108, %109, %110, %111"
#define WEFT_D27 "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WEFT_S28 "%112, %113, %114, %115"
#define WEFT_D28 "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define WEFT_S29 "%116, %117, %118, %119"
#define WEFT_D29 "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WEFT_S30 "%120, %121, %122, %123"
#define WEFT_D30 "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define WEFT_S31 "%124, %125, %126, %127"
#define WEFT_D31 "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define WEFT_S_8 WEFT_S0
#define WEFT_D_8 WEFT_D0
#define WEFT_S_16 WEFT_S_8 ", " WEFT_S1
#define WEFT_D_16 WEFT_D_8, WEFT_D1
#define WEFT_S_24 WEFT_S_16 ", " WEFT_S2
#define WEFT_D_24 WEFT_D_16, WEFT_D2
#define WEFT_S_32 WEFT_S_24 ", " WEFT_S3
#define WEFT_D_32 WEFT_D_24, WEFT_D3
#define WEFT_S_40 WEFT_S_32 ", " WEFT_S4
#define WEFT_D_40 WEFT_D_32, WEFT_D4
#define WEFT_S_48 WEFT_S_40 ", " WEFT_S5
#define WEFT_D_48 WEFT_D_40, WEFT_D5
#define WEFT_S_56 WEFT_S_48 ", " WEFT_S6
#define WEFT_D_56 WEFT_D_48, WEFT_D6
#define WEFT_S_64 WEFT_S_56 ", " WEFT_S7
#define WEFT_D_64 WEFT_D_56, WEFT_D7
#define WEFT_S_72 WEFT_S_64 ", " WEFT_S8
#define WEFT_D_72 WEFT_D_64, WEFT_D8
#define WEFT_S_80 WEFT_S_72 ", " WEFT_S9
#define WEFT_D_80 WEFT_D_72, WEFT_D9
#define WEFT_S_88 WEFT_S_80 ", " WEFT_S10
#define WEFT_D_88 WEFT_D_80, WEFT_D10
#define WEFT_S_96 WEFT_S_88 ", " WEFT_S11
#define WEFT_D_96 WEFT_D_88, WEFT_D11
#define WEFT_S_104 WEFT_S_96 ", " WEFT_S12
#define WEFT_D_104 WEFT_D_96, WEFT_D12
#define WEFT_S_112 WEFT_S_104 ", " WEFT_S13
#define WEFT_D_112 WEFT_D_104, WEFT_D13
#define WEFT_S_120 WEFT_S_112 ", " WEFT_S14
#define WEFT_D_120 WEFT_D_112, WEFT_D14
#define WEFT_S_128 WEFT_S_120 ", " WEFT_S15
#define WEFT_D_128 WEFT_D_120, WEFT_D15
#define WEFT_S_136 WEFT_S_128 ", " WEFT_S16
#define WEFT_D_136 WEFT_D_128, WEFT_D16
#define WEFT_S_144 WEFT_S_136 ", " WEFT_S17
#define WEFT_D_144 WEFT_D_136, WEFT_D17
#define WEFT_S_152 WEFT_S_144 ", " WEFT_S18
#define WEFT_D_152 WEFT_D_144, WEFT_D18
#define WEFT_S_160 WEFT_S_152 ", " WEFT_S19
#define WEFT_D_160 WEFT_D_152, WEFT_D19
#define WEFT_S_168 WEFT_S_160 ", " WEFT_S20
#define WEFT_D_168 WEFT_D_160, WEFT_D20
#define WEFT_S_176 WEFT_S_168 ", " WEFT_S21
#define WEFT_D_176 WEFT_D_168, WEFT_D21
#define WEFT_S_184 WEFT_S_176 ", " WEFT_S22
#define WEFT_D_184 WEFT_D_176, WEFT_D22
#define WEFT_S_192 WEFT_S_184 ", " WEFT_S23
#define WEFT_D_192 WEFT_D_184, WEFT_D23
#define WEFT_S_200 WEFT_S_192 ", " WEFT_S24
#define WEFT_D_200 WEFT_D_192, WEFT_D24
#define WEFT_S_208 WEFT_S_200 ", " WEFT_S25
#define WEFT_D_208 WEFT_D_200, WEFT_D25
#define WEFT_S_216 WEFT_S_208 ", " WEFT_S26
#define WEFT_D_216 WEFT_D_208, WEFT_D26
#define WEFT_S_224 WEFT_S_216 ", " WEFT_S27
#define WEFT_D_224 WEFT_D_216, WEFT_D27
#define WEFT_S_232 WEFT_S_224 ", " WEFT_S28
#define WEFT_D_232 WEFT_D_224, WEFT_D28
#define WEFT_S_240 WEFT_S_232 ", " WEFT_S29
#define WEFT_D_240 WEFT_D_232, WEFT_D29
#define WEFT_S_248 WEFT_S_240 ", " WEFT_S30
#define WEFT_D_248 WEFT_D_240, WEFT_D30
#define WEFT_S_256 WEFT_S_248 ", " WEFT_S31
#define WEFT_D_256 WEFT_D_248, WEFT_D31

// N columns; A, B, P: the operands' numbers after the N / 2 registers of the result.
#define WEFT_WGMMA(FORMAT, N, SHAPE, TRANSPOSED, A, B, P)                           \
  template <>                                                                       \
  __device__ inline void wgmma<FORMAT, N>(float(&d)[N / 2], uint64_t a, uint64_t b, \
                                          bool accumulate) {                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                            \
                 ", 0;\n"                                                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N SHAPE " {" WEFT_S_##N       \
                 "}, %" #A ", %" #B ", p, 1, 1" TRANSPOSED ";\n}"                   \
                 : WEFT_D_##N                                                       \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));              \
  }
#define WEFT_WGMMA_BOTH(N, A, B, P)                           \
  WEFT_WGMMA(Bf16, N, "k16.f32.bf16.bf16", ", 0, 0", A, B, P) \
  WEFT_WGMMA(E4m3, N, "k32.f32.e4m3.e4m3", "", A, B, P)
WEFT_WGMMA_BOTH(16, 8, 9, 10)
WEFT_WGMMA_BOTH(32, 16, 17, 18)
WEFT_WGMMA_BOTH(48, 24, 25, 26)
WEFT_WGMMA_BOTH(64, 32, 33, 34)
WEFT_WGMMA_BOTH(96, 48, 49, 50)
WEFT_WGMMA_BOTH(128, 64, 65, 66)
WEFT_WGMMA_BOTH(144, 72, 73, 74)
WEFT_WGMMA_BOTH(160, 80, 81, 82)
WEFT_WGMMA_BOTH(192, 96, 97, 98)
WEFT_WGMMA_BOTH(224, 112, 113, 114)
WEFT_WGMMA_BOTH(256, 128, 129, 130)
#undef WEFT_WGMMA_BOTH
#undef WEFT_WGMMA

/// Begins a batch: the products of the 128 bytes of k that a tile's rows have, added to `sums`
/// where `onto`. B begins kBFrom bytes after what `b` describes.
template <class Format, uint32_t kBFrom = 0, int kCount>
__device__ __forceinline__ void begin_row_products(float (&sums)[kCount], uint64_t a, uint64_t b,
                                                   bool onto) {
  hold(sums);
  wgmma_begin();
#pragma unroll
  for (int i = 0; i < kRowBytes / kWgmmaRowBytes; ++i) {
    const uint32_t offset = i * kWgmmaRowBytes;
    wgmma<Format, 2 * kCount>(sums, advance(a, offset), advance(b, kBFrom + offset), onto || i > 0);
  }
  wgmma_commit();
  hold(sums);
}

}  // namespace weft::hopper
