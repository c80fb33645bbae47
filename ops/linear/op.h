// linear: out[r, c] (+)= f(alpha * (sum_k a[r, k] * w[c, k] + bias[c])), f an activation (FFNs
// without a gate) or a soft cap c tanh(x / c) (Gemma-2's logits) or neither. Every projection and
// the head. Rounding is the caller's choice: f32 `a` is multiplied in f32 whatever w's format is;
// bf16 `a` with bf16 `w` goes through the bf16 dot product where the device has one, summed in f32;
// `w` in e4m3fn is w * scale, exactly, but that many rows of bf16 `a` meet it rounded to bf16.
#pragma once

#include <cstddef>
#include <span>

#include "base/activation.h"
#include "base/range.h"
#include "base/scaling.h"
#include "ops/matrix.h"

namespace weft {

namespace cpu {
struct PackedMatrix;  // arch/cpu/packed.h
}

struct LinearArgs {
  ConstMatrix a;     ///< [rows, k]: f32, or bf16 when w is bf16 or e4m3fn
  ConstMatrix w;     ///< [n, k], f32, bf16, f16 or e4m3fn (NaN reads as 480), as checkpoints are
  ConstVector bias;  ///< [n] or null data
  /// cpu: w packed, read in its place; then w says its format alone.
  const cpu::PackedMatrix* packed = nullptr;
  int64_t n = 0;
  int64_t k = 0;
  float alpha = 1;
  bool accumulate = false;  ///< add to what out holds (the residual)
  Activation activation = Activation::none;
  Matrix out;                 ///< [rows, n], f32; or bf16, unless it accumulates
  float soft_cap = 0;         ///< 0: none
  WeightScales scales = {};   ///< of w in e4m3fn
  Fp8Rounding rounding = {};  ///< of a's rows, before they meet such a w
};

constexpr double linear_flops(int64_t rows, int64_t n, int64_t k) { return 2.0 * rows * n * k; }

namespace reference {
/// out: [rows.size(), columns.size()]: f(alpha * (a.w + bias)), without what `out` held.
void linear(const LinearArgs& args, Range rows, Range columns, double* out);
}  // namespace reference
namespace cpu {
/// Computes out[rows, columns]. The result of an element depends on neither range, so that any
/// split of the work gives the same bits; it may depend on whether rows.size() is small
/// (streaming kernel) or large (blocked kernel).
/// `scratch` holds at least linear_scratch_bytes(), 64-byte aligned, and is this worker's alone.
void linear(const LinearArgs& args, Range rows, Range columns, std::span<std::byte> scratch);
/// Brings the line-th cache line of each stream of weights that linear() of a few rows reads, or
/// the line-th four of packed ones, into the cache, for a worker that waits for `a`. Reads no
/// operand.
void linear_prefetch(const LinearArgs& args, Range columns, int64_t line);
/// Enough for calls of up to `rows` rows.
size_t linear_scratch_bytes(const LinearArgs& args, int64_t rows);
}  // namespace cpu

}  // namespace weft
