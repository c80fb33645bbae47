// What the AMD kernels of linear and gated_linear share: products of a chunk's rows with weights of
// any format, and what is done to the sums before they are written.
#pragma once

#include <type_traits>

#include "arch/cdna/math.hip.h"
#include "base/activation.h"
#include "ops/cdna_gemm.hip.h"

namespace weft::cdna {

using f32_t = float;  ///< as kernels' names have it

/// Rows are A, bf16 or f32, which decides what products are taken in; weights are W, A itself or
/// widened to f32.
template <class A, class W>
struct LinearOf {
  static_assert(sizeof(A) == 4 || std::is_same_v<A, W>, "rows in bf16 want weights in bf16");
  static constexpr Format kFormat = sizeof(A) == 4 ? Format::f32 : Format::bf16;
  template <int kRows>
  using Tile =
      std::conditional_t<sizeof(A) == sizeof(W), RowMajorTile<kRows, true>, WideningTile<kRows, W>>;

  /// The sums of a tile, all of k.
  template <class Shape, class TileA, class TileB>
  WEFT_GPU void multiply(TileA& a, TileB& b, int k, LdsBytes* lds, Sums<Shape>& sums) {
    const StripPairs<Shape, TileA, TileB> pairs;
    const int blocks = ceil_div(k * static_cast<int>(sizeof(A)), kStripBytes);
    walk_k<Shape>(a, b, lds, 0, blocks, [&](const LdsBytes* stage, int) {
      const Priority priority;
      pairs.visit(
          stage,
          [&](int t, int i, const Strip& b_strip, const Strip& a_strip) {
            sums.of[t][i] = mma<kFormat>(b_strip, a_strip, sums.of[t][i]);
          },
          [](int) {});
    });
  }
};

/// Four of a vector of `count` W, from element `first` on: zeros where there is no vector.
template <class W>
WEFT_GPU f32x4 load_four(const void* vector, int count, int first) {
  const Buffer buffer(vector, vector != nullptr ? count * sizeof(W) : 0);
  if constexpr (sizeof(W) == 4) {
    return __builtin_bit_cast(f32x4, buffer.load(first * sizeof(W)));
  } else {
    const auto raw = __builtin_bit_cast(Vector<W, 4>, buffer.load_pair(first * sizeof(W)));
    return __builtin_convertvector(raw, f32x4);
  }
}

/// Where in a tile's n the four sums of strip t lie: of[t][i].
template <class Shape>
WEFT_GPU int column_of(int t) {
  return Shape::wave_n() + t / 2 * 2 * kStripRows + lane_index() / kStripRows * 8 + t % 2 * 4;
}

/// x / (1 + e^-y), y = x for SiLU; for GELU's tanh formula y is what makes it the same.
WEFT_GPU float activate(Activation activation, float x) {
  if (activation == Activation::none) {
    return x;
  }
  const float y =
      activation == Activation::silu ? x : 1.5957691216057308f * (x + 0.044715f * x * x * x);
  return x / (1 + exp_of(-y));
}

}  // namespace weft::cdna
