// rmsnorm of a chunk's rows on AMD.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/rmsnorm/op.h"

namespace weft::cdna {

/// Why prefill_rmsnorm() cannot take such operands; empty: it can. All pointers must be aligned to
/// 16 bytes besides.
std::string_view refuse_prefill_rmsnorm(const RmsNormArgs& args);

/// Rows [0, rows) of args, groups counted apart. Errors: device (the launch failed).
Status prefill_rmsnorm(const RmsNormArgs& args, int64_t rows, Stream stream);

}  // namespace weft::cdna
