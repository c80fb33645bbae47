// Weights in 12 bits (windowed.h) as a resident kernel reads them (see ops/linear/hopper.cuh).
//
// A slice begins with a header of 128 bytes: for each row of A the exponent of what scales its
// sums, then the weights that are listed. Then the groups, 768 bytes each: 16 bytes a lane, the low
// parts of its 16 weights, and 8 bytes a lane, their high parts; the word of registers 2q and
// 2q + 1 of mma j has the bytes of four weights, the j-th word of high parts those of all four
// registers, by number. Beyond k, where the row is zero, weights are anything. Weights become bf16
// as they go from shared memory to registers, seven instructions for eight of them.
#pragma once

#include "ops/linear/forms/hopper_slice.h"

namespace weft::hopper {

inline constexpr int kLowBytes = kUnitColumns * kGroupK;
inline constexpr int kHighBytes = kUnitColumns * kGroupK / 2;
inline constexpr int kCompressedGroupBytes = kLowBytes + kHighBytes;
inline constexpr int kCompressedSliceBytes =
    kSliceHeaderBytes + kSliceGroups * kCompressedGroupBytes;
/// Weights that a slice may list: the header has a byte for each row of the operand A, then four
/// for each of these.
inline constexpr int kMostListed = (kSliceHeaderBytes - kUnitColumns) / 4;

/// The form's tag, and its share of the table of forms (hopper_forms.h).
struct PackedForm {
  static constexpr int kSliceBytes = kCompressedSliceBytes;
  static constexpr int kSlicesOfPage = kPageSlices;
};

}  // namespace weft::hopper
