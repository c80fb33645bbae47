// embed for a chunk's rows on Hopper.
#pragma once

#include "arch/device.h"
#include "ops/embed/op.h"

namespace weft::hopper {

/// Rows [0, rows) of args; tokens are on the device. The table is bf16; columns and strides are
/// multiples of 8, pointers aligned to 16 bytes. Errors: device (the launch failed).
Status prefill_embed(const EmbedArgs& args, int64_t rows, Stream stream);

}  // namespace weft::hopper
