// linear for a chunk's rows on Hopper: gemm_bf16, or gemm_skinny for few rows, and what these have
// no form for after it.
#pragma once

#include <algorithm>

#include "arch/device.h"
#include "ops/gemm_skinny/op.h"
#include "ops/linear/op.h"

namespace weft::hopper {

/// What prefill_linear() works in, on the device.
struct PrefillScratch {
  float* product = nullptr;  ///< [rows, n]: the product alone, where something comes after it
  Workspace workspace;       ///< see prefill_linear_workspace()
};

/// Rows of `product` that a linear operation of up to `rows` rows wants: all where a bias or a
/// factor is applied after the product, few where a product of few rows is added to out.
constexpr int64_t prefill_linear_scratch_rows(bool bias, float alpha, bool accumulate,
                                              int64_t rows) {
  return bias || alpha != 1 ? rows : accumulate ? std::min(rows, kSkinnyRows) : 0;
}
/// Bytes of workspace, for any number of rows. Its counters are zero before the first use.
Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream);

/// Rows [0, rows) of args; a, w and the bias are bf16, n and k multiples of 8, strides of 8,
/// pointers aligned to 16 bytes. Errors: device (a launch failed).
Status prefill_linear(const LinearArgs& args, int64_t rows, const PrefillScratch& scratch,
                      Stream stream);

}  // namespace weft::hopper
