// Where elements of tiles are: pure functions that hold on the host too, so that they are tested on
// any machine. The kernels are compiled with --expt-relaxed-constexpr and call the same ones.
#pragma once

#include <cstdint>

#include "base/divide.h"

namespace weft::hopper {

/// Bytes of a row of a shared tile. Tiles are columns of such rows: the widest that the copy engine
/// and the tensor cores can swizzle.
inline constexpr int kRowBytes = 128;
/// A swizzle pattern repeats after 8 rows; tiles begin at multiples of it.
inline constexpr int kSwizzleBytes = 8 * kRowBytes;

/// The 128-byte swizzle (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"): the
/// 16-byte chunk within the row is xor-ed with the row's number modulo 8, so that eight rows of one
/// column lie in different banks. An involution.
constexpr uint32_t swizzle_128(uint32_t offset) { return offset ^ ((offset >> 3) & 0x70); }

/// Element i of what a thread of a warpgroup holds of a wgmma's 64 x N result in f32 (PTX ISA,
/// "Register Fragments for wgmma.mma_async.m64nNk16", D).
struct Coordinate {
  int row;
  int column;
};
constexpr Coordinate accumulator_coordinate(int thread, int i) {
  return {thread / 32 * 16 + thread % 32 / 4 + (i / 2 % 2) * 8, i / 4 * 8 + thread % 4 * 2 + i % 2};
}

}  // namespace weft::hopper
