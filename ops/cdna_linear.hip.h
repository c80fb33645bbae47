// What the AMD kernels of linear and gated_linear share: products of a chunk's rows with weights of
// any format, and what is done to the sums before they are written.
#pragma once

#include <type_traits>

#include "arch/cdna/math.hip.h"
#include "base/activation.h"
#include "ops/cdna_gemm.hip.h"

namespace weft::cdna {

using f32_t = float;  ///< as kernels' names have it

static_assert(lies_in_strips("v_mfma_f32_16x16x16_f16") &&
              lies_in_strips("v_mfma_f32_16x16x32_f16"));

/// As mma_bf16(), of f16.
WEFT_GPU f32x4 mma_f16(u32x4 a, u32x4 b, f32x4 c) {
#if defined(__gfx950__)
  using Operand = Vector<f16_t, 8>;
  return __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(Operand, a),
                                                __builtin_bit_cast(Operand, b), c, 0, 0, 0);
#else
  using Operand = Vector<f16_t, 4>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(
        __builtin_bit_cast(Operand, u32x2{a[2 * i], a[2 * i + 1]}),
        __builtin_bit_cast(Operand, u32x2{b[2 * i], b[2 * i + 1]}), c, 0, 0, 0);
  }
  return c;
#endif
}

/// Rows are A, bf16, f16 or f32, which decides what products are taken in; weights are W, A itself
/// or widened to f32.
template <class A, class W>
struct LinearOf {
  static_assert(sizeof(A) == 4 || std::is_same_v<A, W>, "rows in 16 bits want weights like them");
  WEFT_GPU f32x4 multiply(const Strip& a, const Strip& b, f32x4 c) {
    if constexpr (std::is_same_v<A, f16_t>) {
      return mma_f16(a.half[1], b.half[1], mma_f16(a.half[0], b.half[0], c));
    } else {
      return mma < sizeof(A) == 4 ? Format::f32 : Format::bf16 > (a, b, c);
    }
  }
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
            sums.of[t][i] = multiply(b_strip, a_strip, sums.of[t][i]);
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

/// Element i of a vector whose `format` is 0: f32, 1: bf16, or 2: f16.
WEFT_GPU float number_at(const void* vector, int format, int i) {
  return format == 0   ? at<float>(vector, i * 4)
         : format == 1 ? static_cast<float>(at<bf16_t>(vector, i * 2))
                       : static_cast<float>(at<f16_t>(vector, i * 2));
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
