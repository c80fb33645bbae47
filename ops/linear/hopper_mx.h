// Weights in MXFP4 as a resident kernel reads them (see hopper.cuh): words of codes (mx_words.h),
// and the scale of each row's 32 of k.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

#include "ops/linear/mx_words.h"

namespace weft::hopper {

using mx_words::mx_codes;
using mx_words::mx_pair;
using mx_words::mx_placed;

/// 2^126 twice as bf16: what mx_pair() is multiplied with.
inline constexpr uint32_t kMxUnits = 0x7e807e80u;

/// Where a slice's header has the scale, as e8m0, of a row of the operand A in a group.
constexpr int mx_scale_place(int row, int group) { return row * 8 + group; }
/// A scale of 2^-127, which bf16 has among its subnormal numbers alone, is 2^-126 with all codes
/// zero; the scale that is NaN has all codes zero and is infinite.
constexpr bool mx_has_codes(uint32_t scale) { return scale > 0 && scale < 255; }
constexpr uint32_t mx_kept_scale(uint32_t scale) { return scale == 0 ? 1 : scale; }

}  // namespace weft::hopper
