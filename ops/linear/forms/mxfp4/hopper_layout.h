// Weights in MXFP4 as a resident kernel reads them (see ops/linear/hopper.cuh): words of codes
// (words.h), and the scale of each row's 32 of k.
//
// A slice begins with the scales of its rows of A, one for each group, in e8m0. Then the groups,
// 256 bytes each: 8 bytes a lane, a word the codes of one row: its k in ascending order are the
// pairs of the word. Weights are bf16, scales and all, when they are in registers. Never folded.
//
// Plain functions of numbers, for the kernel that packs, the one that multiplies, and tests.
#pragma once

#include <cstdint>

#include "ops/linear/forms/hopper_slice.h"
#include "ops/linear/forms/mxfp4/words.h"

namespace weft::hopper {

using mx_words::mx_codes;
using mx_words::mx_pair;
using mx_words::mx_placed;

inline constexpr int kMxGroupBytes = kUnitColumns * kGroupK / 2;
inline constexpr int kMxSliceBytes = kSliceHeaderBytes + kSliceGroups * kMxGroupBytes;
inline constexpr int kMxPageSlices = 8;

/// The form's tag, and its share of the table of forms (hopper_forms.h).
struct MxForm {
  static constexpr int kSliceBytes = kMxSliceBytes;
  static constexpr int kSlicesOfPage = kMxPageSlices;
};

/// 2^126 twice as bf16: what mx_pair() is multiplied with.
inline constexpr uint32_t kMxUnits = 0x7e807e80u;

/// Where a slice's header has the scale, as e8m0, of a row of the operand A in a group.
constexpr int mx_scale_place(int row, int group) { return row * 8 + group; }
/// A scale of 2^-127, which bf16 has among its subnormal numbers alone, is 2^-126 with all codes
/// zero; the scale that is NaN has all codes zero and is infinite.
constexpr bool mx_has_codes(uint32_t scale) { return scale > 0 && scale < 255; }
constexpr uint32_t mx_kept_scale(uint32_t scale) { return scale == 0 ? 1 : scale; }

}  // namespace weft::hopper
