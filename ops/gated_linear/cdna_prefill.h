// gated_linear for a chunk's rows on AMD.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/gated_linear/op.h"

namespace weft::cdna {

/// Why prefill_gated_linear() cannot take such operands; empty: it can. All pointers must be
/// aligned to 16 bytes besides, and biases have the weights' format.
std::string_view refuse_prefill_gated_linear(const GatedLinearArgs& args);

/// Rows [0, rows) of args. Errors: device (the launch failed).
Status prefill_gated_linear(const GatedLinearArgs& args, int64_t rows, Stream stream);

}  // namespace weft::cdna
