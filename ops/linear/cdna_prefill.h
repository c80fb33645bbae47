// linear for a chunk's rows on AMD. Rows in bf16: gemm_bf16, or, where a bias, a factor, an
// activation or a soft cap comes after the product, a kernel that does all of it; rows in f32: that
// kernel, in f32 throughout.
#pragma once

#include <string_view>

#include "arch/device.h"
#include "ops/linear/op.h"
#include "ops/linear/prefill.h"

namespace weft::cdna {

/// Bytes of workspace, for up to 4096 rows. Its counters are zero before the first use.
Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream);

/// Why prefill_linear() cannot take such operands; empty: it can. All pointers must be aligned to
/// 16 bytes besides, and a bias has the weights' format.
std::string_view refuse_prefill_linear(const LinearArgs& args);

/// Rows [0, rows) of args; `scratch` needs no product. Errors: device (a launch failed).
Status prefill_linear(const LinearArgs& args, int64_t rows, const PrefillScratch& scratch,
                      Stream stream);

}  // namespace weft::cdna
