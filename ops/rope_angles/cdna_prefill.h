// rope_angles of a chunk's rows on AMD.
#pragma once

#include "arch/device.h"
#include "ops/rope_angles/op.h"
#include "ops/row_places.h"

namespace weft::cdna {

/// Rows [0, rows) of args, at positions first, first + 1, ... (args.positions is not looked at).
/// Errors: device (the launch failed).
Status prefill_rope_angles(const RopeAnglesArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places = {});

}  // namespace weft::cdna
