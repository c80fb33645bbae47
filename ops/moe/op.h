// moe: a mixture of experts (Shazeer et al. 2017) in three steps. route: which experts a row has,
// and with what weights. experts_up: each row's drawn experts' gated products. experts_down: their
// second products, weighted and summed:
//   out[r] (+)= alpha * sum_s weight[r, s] * down_e(f(gate_e(a[r])) * up_e(a[r])), e = id[r, s]
// Experts may be in MXFP4; gpt-oss's have a clamped f and biases.
// Rows are sorted by expert, so that an expert's weights are read once, and those of experts that
// nobody drew are not read at all. What one row has changes no other row's result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mx.h"
#include "base/range.h"
#include "ops/gated_linear/op.h"
#include "ops/linear/op.h"
#include "ops/matrix.h"

namespace weft {

/// What rows have drawn. Slot s of row r, the row's s-th expert, is at row * stride + s, here and
/// in what lies between the products.
struct Drawn {
  int32_t* ids = nullptr;    ///< in a row all different, ascending
  float* weights = nullptr;  ///< f32
  int64_t chosen = 0;        ///< experts of a row
  int64_t stride = 0;        ///< chosen; 0: there are slots of one row, whichever it is
  /// cpu: an expert's kernel does not depend on how many rows drew it. That of many is taken.
  bool alone = false;

  int64_t slot(int64_t row, int64_t s) const { return row * stride + s; }
};

/// Experts that a router may have.
inline constexpr int64_t kMostRouted = 4096;

struct RouteArgs {
  ConstMatrix logits;        ///< [rows, experts], f32
  int64_t experts = 0;       ///< at least as many as are chosen; at most kMostRouted
  bool sigmoid = false;      ///< a weight is its logit's sigmoid; otherwise their softmax
  bool renormalise = false;  ///< weights are divided by the sum of the chosen ones'
  /// Written: the experts of the largest logits, of equal ones those of lower number. NaN is larger
  /// than any number, as torch.topk has it.
  Drawn drawn;
  /// [experts] or null data: chosen are the experts of the largest sigmoid + correction.
  ConstVector correction = {};
  /// Experts are of this many groups of equal size, and chosen from the best `kept_groups` of them,
  /// which have at least as many as are chosen. A group is as good as its best expert or, with a
  /// correction, the sum of its best two.
  int64_t groups = 1;
  int64_t kept_groups = 1;
  float scale = 1;  ///< of all weights
};

struct ExpertsUpArgs {
  ConstMatrix a;  ///< [rows, k]: see gated_linear
  Drawn drawn;    ///< without weights
  /// All alike but for their weights; `a` and `out` of each are not used.
  std::vector<GatedLinearArgs> experts = {};
  Matrix out;  ///< [slots, n], f32 or bf16
  /// Columns are counted through all of a row's slots, slot after slot.
  bool flat = false;
  /// Experts in MXFP4, of which `experts` says the rest; empty: they are in other formats.
  std::vector<MxMatrix> gates = {}, ups = {};
  /// Of MXFP4: with g and u the products, biases added, out is min(g, limit) * sigmoid(1.702
  /// min(g, limit)) * (clamp(u, -limit, limit) + 1), whatever the activation is. 0: f(g) * u.
  float limit = 0;
};

struct ExpertsDownArgs {
  ConstMatrix a;  ///< [slots, k]: see linear
  Drawn drawn;
  /// All alike but for their weights; `a` and `out` of each are not used.
  std::vector<LinearArgs> experts = {};
  float alpha = 1;
  bool accumulate = false;        ///< add to what out holds (the residual)
  Matrix out;                     ///< [rows, n], f32; or bf16 where nothing is accumulated
  std::vector<MxMatrix> mx = {};  ///< see ExpertsUpArgs::gates
};

namespace reference {
/// ids and weights: [rows.size(), chosen].
void route(const RouteArgs& args, Range rows, int32_t* ids, double* weights);
/// out: [rows.size() * chosen, columns.size()].
void experts_up(const ExpertsUpArgs& args, Range rows, Range columns, double* out);
/// out: [rows.size(), columns.size()], without what `out` held.
void experts_down(const ExpertsDownArgs& args, Range rows, Range columns, double* out);
}  // namespace reference

namespace cpu {
void route(const RouteArgs& args, Range rows);
/// Columns [columns] of all slots of `rows` (but see ExpertsUpArgs::flat). Promises as of linear,
/// but that which kernel a row meets depends on how many rows drew the expert (see Drawn::alone).
/// `scratch`: see linear.
void experts_up(const ExpertsUpArgs& args, Range rows, Range columns, std::span<std::byte> scratch);
/// Slots are summed one after the other, in f32, and sums rounded once.
void experts_down(const ExpertsDownArgs& args, Range rows, Range columns,
                  std::span<std::byte> scratch);
/// Of row 0's first expert; see linear_prefetch. Reads ids.
void experts_down_prefetch(const ExpertsDownArgs& args, Range columns, int64_t line);
/// Enough for calls of up to `rows` rows.
size_t experts_up_scratch_bytes(const ExpertsUpArgs& args, int64_t rows);
size_t experts_down_scratch_bytes(const ExpertsDownArgs& args, int64_t rows);
}  // namespace cpu

}  // namespace weft
