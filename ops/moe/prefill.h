// What a mixture of experts takes of a chunk's rows, on any GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "ops/moe/op.h"

namespace weft {

/// The same matrix of each expert, one `pitch` bytes behind the other.
struct ExpertMatrices {
  ConstMatrix first;
  int64_t pitch = 0;
  /// 0: the matrices are as `first` says. Otherwise they are in MXFP4 (base/mx.h), their rows one
  /// behind the other, `first` has the first one's codes as if they were bf16, in which their
  /// numbers are exact, and the scales are so many bytes behind a matrix's codes.
  int64_t scales = 0;
  /// Of codes in e4m3fn: the first one's scales, of blocks (WeightScales), each a row of them
  /// behind the other, and bytes from a matrix's to the next one's.
  const float* block_scales = nullptr;
  int64_t block_scales_pitch = 0;
};

/// A layer's experts and what rows have drawn of them, all on the device. Slot s of row r, its s-th
/// expert, is at r * chosen + s.
struct PrefillDraw {
  const int32_t* ids = nullptr;    ///< [rows * chosen], aligned to 16 bytes
  const float* weights = nullptr;  ///< likewise; of experts_down
  int64_t experts = 0, chosen = 0;
  int32_t* order = nullptr;  ///< scratch, moe_order_elements(): the slots, sorted by expert
  /// On sm_90a: a row's bits depend on no other row, nor how many there are.
  bool alone = false;
};
constexpr int64_t moe_order_elements(int64_t rows, int64_t chosen, int64_t experts) {
  return experts + 1 + rows * chosen;
}

struct PrefillExpertsUp {
  ConstMatrix a;  ///< [rows, k], f32 or bf16
  PrefillDraw drawn;
  ExpertMatrices gate, up;                   ///< [n, k] each
  ConstVector gate_bias = {}, up_bias = {};  ///< [experts * n]: those of all
  int64_t n = 0, k = 0;
  Activation activation = Activation::silu;
  float limit = 0;  ///< see ExpertsUpArgs
  Matrix out;       ///< [rows * chosen, n], in a's format
};

struct PrefillExpertsDown {
  ConstMatrix a;  ///< [rows * chosen, k], f32 or bf16
  PrefillDraw drawn;
  /// The first products of the same draw have run: drawn.order is as they left it, and nothing that
  /// ran since then has written the weights.
  bool sorted = false;
  ExpertMatrices weight;  ///< [n, k] each
  ConstVector bias = {};  ///< [experts * n]
  int64_t n = 0, k = 0;
  float alpha = 1;
  bool accumulate = false;
  Matrix out;                 ///< [rows, n], f32; or in a's format where nothing is accumulated
  float* products = nullptr;  ///< scratch: [rows * chosen, n]
};

/// Which condition of the result, that a GPU stores four numbers of at once, does not hold.
inline std::string_view refuse_result(const PrefillExpertsDown& args) {
  if (args.out.dtype != DType::f32 && (args.out.dtype != args.a.dtype || args.accumulate)) {
    return "the result must be f32 or, where nothing is added to, as the rows are";
  }
  return args.out.stride % 4 != 0 ? "n, k and strides must be multiples of 8" : "";
}

}  // namespace weft
