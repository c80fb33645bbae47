// The forms that weights may have in a resident kernel's stream. Each has a folder here: its
// layout, who packs it (hopper_pack.cuh) and who reads it (hopper.cuh).
#pragma once

#include <cstdint>

#include "ops/linear/forms/fp8/hopper_layout.h"
#include "ops/linear/forms/mxfp4/hopper_layout.h"
#include "ops/linear/forms/packed/hopper_layout.h"
#include "ops/linear/forms/plain/hopper_layout.h"

namespace weft::hopper {

enum class StreamForm : uint8_t {
  plain,       ///< bf16
  compressed,  ///< bf16 in 12 bits
  fp8,         ///< e4m3fn
  mx,          ///< MXFP4
};

constexpr int weight_slice_bytes(StreamForm form) {
  return form == StreamForm::plain        ? PlainForm::kSliceBytes
         : form == StreamForm::compressed ? PackedForm::kSliceBytes
         : form == StreamForm::fp8        ? Fp8Form::kSliceBytes
                                          : MxForm::kSliceBytes;
}
/// What one copy brings.
constexpr int page_slices(StreamForm form) {
  return form == StreamForm::mx    ? MxForm::kSlicesOfPage
         : form == StreamForm::fp8 ? Fp8Form::kSlicesOfPage
                                   : kPageSlices;
}
inline constexpr int kMostPageSlices = MxForm::kSlicesOfPage;
constexpr int page_bytes(StreamForm form) { return page_slices(form) * weight_slice_bytes(form); }

}  // namespace weft::hopper
