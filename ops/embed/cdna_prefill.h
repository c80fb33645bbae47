// embed for a chunk's rows on AMD.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/embed/op.h"

namespace weft::cdna {

/// Why prefill_embed() cannot take such operands; empty: it can. All pointers must be aligned to 16
/// bytes besides.
std::string_view refuse_prefill_embed(const EmbedArgs& args);

/// Rows [0, rows) of args; tokens are on the device. Errors: device (the launch failed).
Status prefill_embed(const EmbedArgs& args, int64_t rows, Stream stream);

}  // namespace weft::cdna
