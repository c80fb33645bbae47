// The draw and the experts of a mixture as operations by themselves: of rows that are all there at
// once, on the CPU or a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "arch/device.h"
#include "base/result.h"
#include "ops/kernel.h"
#include "ops/moe/prefill.h"

namespace weft {

/// Error (usage): which condition of RouteArgs does not hold. Rows lie one behind the other, logits
/// and corrections are f32, and a correction goes with the sigmoid.
Status check(const RouteArgs& args, int64_t rows);
/// Draws for rows [0, rows). Errors: usage, device (there is no kernel, and why; the launch
/// failed).
Status route(const RouteArgs& args, int64_t rows, Stream stream);

/// Rows through the experts that they drew:
///   out[r] = sum_s weights[r, s] * down_e(f(gate_e(x[r])) * up_e(x[r])), e = ids[r, s]
/// Pointers are aligned to 16 bytes, those of scales and biases to their elements.
struct MoeArgs {
  int64_t rows = 0;
  int64_t chosen = 0;              ///< experts of a row
  int64_t experts = 0;             ///< at most kMostRouted
  int64_t hidden = 0;              ///< numbers of a row: a multiple of 8, of 32 with MXFP4
  int64_t inner = 0;               ///< what an expert makes of it: likewise
  ConstMatrix a;                   ///< [rows, hidden], bf16; on AMD f16 too
  const int32_t* ids = nullptr;    ///< [rows, chosen], in a row all different, in any order
  const float* weights = nullptr;  ///< likewise
  /// [inner, hidden], the same, and [hidden, inner]: all in a's format, e4m3fn or MXFP4, and both
  /// of the first with the same stride.
  ExpertMatrices gate, up, down;
  /// [experts * inner], the same, [experts * hidden], in a's format; or null data.
  ConstVector gate_bias = {}, up_bias = {}, down_bias = {};
  float limit = 0;  ///< of MXFP4: see ExpertsUpArgs. Without it f is SiLU
  Matrix out;       ///< [rows, hidden], f32 or in a's format
  Workspace workspace;
};

/// Matrices [n, k] in MXFP4: of each expert the codes, then the scales.
inline ExpertMatrices mx_experts(const void* first, int64_t n, int64_t k) {
  return {{first, DType::bf16, k}, MxMatrix::bytes_of(n * k), n * k / 2};
}

/// Error (usage): which of the conditions above does not hold; of ids, nothing.
Status check(const MoeArgs& args);
/// What lies between the products is rounded to a's format, sums are f32, and rounded once where
/// the result is not. On the CPU ids are checked; on a device others than those of experts do what
/// is undefined. Errors: usage, device (there is no kernel, and why; a launch failed).
Status moe(const MoeArgs& args, Stream stream);
Result<size_t> moe_workspace(const MoeArgs& args, Stream stream);

}  // namespace weft
