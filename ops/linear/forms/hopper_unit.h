// A unit of a product's weights (ops/linear/hopper.cuh) that is to be packed. Plain numbers, for
// the host that makes the jobs and the kernel that does them.
#pragma once

#include <cstdint>

#include "ops/linear/forms/fp8/hopper_layout.h"
#include "ops/linear/forms/hopper_forms.h"

namespace weft::hopper {

/// Two runs of rows, of one weight or of gate and up, that fill half of the unit each.
struct PackJob {
  int64_t source[2] = {};     ///< in the arena: the first row
  int64_t scales[2] = {};     ///< in the arena: of the weight, or in MXFP4 of the first row
  int64_t destination = 0;    ///< in the packed weights: of the block's first slice
  int32_t first_row[2] = {};  ///< of the weight
  int32_t rows[2] = {};       ///< that there are; the others are zero
  int32_t k = 0;
  int32_t first = 0;   ///< the unit's first slice in the block
  int32_t slices = 0;  ///< of the block; 0: the unit's lie one after the other
  int32_t pitch = 0;  ///< elements from one k of a row to the next; 0: rows lie one after the other
  int16_t fold = 0;
  StreamForm form = StreamForm::plain;
  ScaleGrid grid = {};    ///< which scale is whose
  int32_t operation = 0;  ///< in the program
  int64_t stage = 0;      ///< of weights that are unpacked together
};

}  // namespace weft::hopper
