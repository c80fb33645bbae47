// gated_linear for a chunk's rows on Hopper.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/gated_linear/op.h"

namespace weft::hopper {

/// Why prefill_gated_linear() cannot take such operands; empty: it can. All pointers must be
/// aligned to 16 bytes besides.
std::string_view refuse_prefill_gated_linear(const GatedLinearArgs& args);

/// Rows [0, rows) of args. Errors: device (the launch failed).
Status prefill_gated_linear(const GatedLinearArgs& args, int64_t rows, Stream stream);
/// The same, of few rows in bf16 by a kernel that reads the weights faster and adds in another
/// order: a row's bits depend on whether there are few.
Status prefill_gated_linear_soon(const GatedLinearArgs& args, int64_t rows, Stream stream);

}  // namespace weft::hopper
