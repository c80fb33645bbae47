// What attention of many rows needs beyond the matrix products' vocabulary: tiles of stacks of
// matrices (heads), and products whose A is in registers and whose B lies transposed. PTX ISA 8.5,
// "cp.async.bulk.tensor", "wgmma.mma_async".
#pragma once

#include <cstdint>

#include "arch/hopper/copy.cuh"
#include "arch/hopper/wgmma.cuh"

namespace weft::hopper {

/// load_tile() of a map with planes: the box at (x, y) of plane z.
__device__ inline void load_plane_tile(void* to, const CUtensorMap& map, int x, int y, int z,
                                       Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(to)),
      "l"(&map), "r"(smem_address(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

/// Four matrices of 8 x 8 16-bit elements, each transposed on the way: lane l gives the address of
/// row l % 8 of matrix l / 8, and gets elements (2 (l % 4) + {0, 1}, l / 4) of each.
__device__ inline uint4 load_transposed_x4(uint32_t address) {
  uint4 x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

/// Describes B[k, n] in shared memory with n contiguous: tiles of 64 columns, each of 128-byte
/// rows (one of k), swizzled, aligned to 1024 bytes, `tile_bytes` from one to the next ("Strides",
/// MN-major: the leading dimension's goes from 64 columns to the next, the other from 8 rows of k
/// to the next). advance() by multiples of 8 rows goes along k.
__device__ inline uint64_t transposed_descriptor(const void* tile, uint32_t tile_bytes) {
  // (An address may tell the block's rank in its cluster above the 18 bits that count here.)
  return uint64_t{smem_address(tile) >> 4 & 0x3fff} | uint64_t{tile_bytes >> 4} << 16 |
         uint64_t{kSwizzleBytes >> 4} << 32 | uint64_t{1} << 62;
}

/// d = a b + (accumulate ? d : 0) in bf16 for N columns, a in registers: elements (row, k),
/// (row + 8, k), (row, k + 8), (row + 8, k + 8) of a thread, two along k each, at the coordinates
/// that it has in a result of 16 columns. b lies as for wgmma() or, where kTransposed, as
/// transposed_descriptor() says.
template <int kN, bool kTransposed>
__device__ void wgmma_registers(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b,
                                bool accumulate);

// N columns; A0 .. A3, B, P: the operands' numbers after the N / 2 registers of the result.
#define WEFT_WGMMA_REGISTERS(N, TRANSPOSED, FLAG, A0, A1, A2, A3, B, P)                          \
  template <>                                                                                    \
  __device__ inline void wgmma_registers<N, TRANSPOSED>(float(&d)[N / 2], const uint32_t(&a)[4], \
                                                        uint64_t b, bool accumulate) {           \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P                                         \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WEFT_S_##N         \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, " FLAG ";\n}"   \
                 : WEFT_D_##N                                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                           \
                   "r"(static_cast<int>(accumulate)));                                           \
  }
#define WEFT_WGMMA_REGISTERS_BOTH(N, A0, A1, A2, A3, B, P)  \
  WEFT_WGMMA_REGISTERS(N, false, "0", A0, A1, A2, A3, B, P) \
  WEFT_WGMMA_REGISTERS(N, true, "1", A0, A1, A2, A3, B, P)
WEFT_WGMMA_REGISTERS_BOTH(32, 16, 17, 18, 19, 20, 21)
WEFT_WGMMA_REGISTERS_BOTH(64, 32, 33, 34, 35, 36, 37)
WEFT_WGMMA_REGISTERS_BOTH(128, 64, 65, 66, 67, 68, 69)
WEFT_WGMMA_REGISTERS_BOTH(192, 96, 97, 98, 99, 100, 101)
WEFT_WGMMA_REGISTERS_BOTH(256, 128, 129, 130, 131, 132, 133)
#undef WEFT_WGMMA_REGISTERS_BOTH
#undef WEFT_WGMMA_REGISTERS

/// Results become operands by rounding alone.
template <int kN>
__device__ void wgmma_transposed(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b) {
  wgmma_registers<kN, true>(d, a, b, true);
}

}  // namespace weft::hopper
