// linear for a chunk's rows on Hopper. Rows in bf16: gemm_bf16, or gemm_skinny for few rows, and
// what these have no form for after it. Rows in f32: a kernel on the CUDA cores, in f32 throughout.
#pragma once

#include <algorithm>
#include <string_view>

#include "arch/device.h"
#include "ops/gemm_skinny/op.h"
#include "ops/linear/op.h"
#include "ops/linear/prefill.h"

namespace weft::hopper {

/// Rows of `product` that a linear operation of up to `rows` rows in bf16 wants: none where the
/// result takes the product's place; all where something `bends` it (a bias, a factor, ...) before
/// it is added to out or rounded to bf16, few where only the product of few rows is added to out.
constexpr int64_t prefill_linear_scratch_rows(bool bends, bool accumulate, DType out,
                                              int64_t rows) {
  return !accumulate && out == DType::f32 ? 0
         : bends                          ? rows
         : accumulate                     ? std::min(rows, kSkinnyRows)
                                          : 0;
}
/// Bytes of workspace, for any number of rows. Its counters are zero before the first use.
Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream);

/// Why prefill_linear() cannot take such operands; empty: it can. All pointers must be aligned to
/// 16 bytes besides, and a bias has the weights' format.
std::string_view refuse_prefill_linear(const LinearArgs& args);

/// Rows [0, rows) of args. Errors: device (a launch failed).
Status prefill_linear(const LinearArgs& args, int64_t rows, const PrefillScratch& scratch,
                      Stream stream);

}  // namespace weft::hopper
