// Weights in bf16 as a resident kernel reads them (see ops/linear/hopper.cuh).
#pragma once

#include "ops/linear/forms/hopper_slice.h"

namespace weft::hopper {

inline constexpr int kGroupBytes = kUnitColumns * kGroupK * 2;
inline constexpr int kPlainSliceBytes = kSliceGroups * kGroupBytes;

/// The form's tag, and its share of the table of forms (hopper_forms.h).
struct PlainForm {
  static constexpr int kSliceBytes = kPlainSliceBytes;
  static constexpr int kSlicesOfPage = kPageSlices;
};

}  // namespace weft::hopper
