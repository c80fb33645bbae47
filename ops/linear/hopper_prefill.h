// linear for a chunk's rows on Hopper: gemm_bf16, and what that has no form for after it.
#pragma once

#include <cstddef>

#include "arch/device.h"
#include "ops/linear/op.h"

namespace weft::hopper {

/// Floats of scratch that prefill_linear() wants: for the product alone where a bias or a factor
/// comes after it.
int64_t prefill_linear_scratch(const LinearArgs& args, int64_t rows);

/// Rows [0, rows) of args; a, w and the bias are bf16, n and k multiples of 8, strides of 8,
/// pointers aligned to 16 bytes. Errors: device (a launch failed).
Status prefill_linear(const LinearArgs& args, int64_t rows, float* scratch, Stream stream);

}  // namespace weft::hopper
