// MXFP4 (OCP Microscaling Formats 1.0): numbers in e2m1, of which 32 adjacent ones of a row share a
// power of two. Every such number is exact in bf16, but for those below its smallest normal one.
#pragma once

#include <cstdint>

#include "base/fp8.h"

namespace weft {

inline constexpr int64_t kMxBlock = 32;

/// A matrix [n, k], k a multiple of kMxBlock, as checkpoints have it: two codes a byte, that of the
/// even element in the low bits, and an e8m0 for each block. Its rows may be every so many'th of a
/// larger matrix.
struct MxMatrix {
  const uint8_t* codes = nullptr;
  const e8m0* scales = nullptr;
  int64_t k = 0;
  int64_t step = 1;  ///< rows of memory from one to the next

  const uint8_t* row_codes(int64_t r) const { return codes + r * step * (k / 2); }
  const e8m0* row_scales(int64_t r) const { return scales + r * step * (k / kMxBlock); }
  /// Element i of row r.
  float at(int64_t r, int64_t i) const {
    const int code = row_codes(r)[i / 2] >> (i % 2 * 4) & 15;
    return to_float(e2m1{static_cast<uint8_t>(code)}) * to_float(row_scales(r)[i / kMxBlock]);
  }

  /// Bytes of `elements` codes and their scales.
  static constexpr int64_t bytes_of(int64_t elements) { return elements / 2 + elements / kMxBlock; }
};

}  // namespace weft
