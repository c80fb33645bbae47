// Matrix products of a wave in units of strips: 16 rows of 128 bytes, which is 128 fp8 numbers,
// 64 bf16 or 32 f32. One mma() is what a strip of a and a strip of b give together: a 16 x 16
// product. Layouts: arch/cdna/matrix_layout.h.
#pragma once

#include "arch/cdna/gpu.hip.h"
#include "arch/cdna/matrix_layout.h"

namespace weft::cdna {

enum class Format { f32, bf16, fp8 };  ///< fp8: e4m3fnuz on gfx942, e4m3fn on gfx950

inline constexpr int kStripRows = 16;
inline constexpr int kStripBytes = 128;

/// Lane l holds 32 bytes of row l % 16: half h is bytes 64 h + 16 (l / 16) and the next 15. Which
/// numbers of k they are does not matter to a product, as long as both operands agree.
struct Strip {
  u32x4 half[2];
};

/// Whether an instruction's operands lie as strips do, and its result as mma() says.
constexpr bool lies_in_strips(std::string_view name) {
  for (const MatrixInstruction& each : kMatrixInstructions) {
    if (each.name == name) {
      const bool a_and_b = each.a_layout().at(3, 0, 0).lane == 3 && each.a_layout().groups() == 4 &&
                           each.b_layout().at(3, 0, 0).lane == 3 && each.b_layout().groups() == 4;
      return a_and_b && each.m == 16 && each.n == 16 &&
             each.d_layout().at(7, 5, 0) == LaneItem{.lane = 16 + 5, .item = 3};
    }
  }
  return false;
}
static_assert(
    lies_in_strips("v_mfma_f32_16x16x32_fp8_fp8") &&
        lies_in_strips("v_mfma_f32_16x16x128_f8f6f4") && lies_in_strips("v_mfma_f32_16x16x4_f32") &&
        lies_in_strips("v_mfma_f32_16x16x16_bf16") && lies_in_strips("v_mfma_f32_16x16x32_bf16") &&
        lies_in_strips("v_smfmac_f32_16x16x64_fp8_fp8"),
    "lane l holds the l % 16th row in four groups of k, and rows 4 (l / 16) of the result");

/// Matrix instructions of an mma().
template <Format kFormat>
inline constexpr int kMmas = kTarget == Target::gfx942 ? 4
                             : kFormat == Format::fp8  ? 1
                                                       : 2;

/// Ends a stretch of code in which the compiler issues vector instructions between `kMatrix` matrix
/// instructions: a matrix unit is busy for 16 cycles and more, in which the wave can issue others.
template <int kMatrix>
WEFT_GPU void interleave() {
  constexpr int kVector = 0x2;
  constexpr int kMatrixOrMulti = 0x8;
#pragma unroll
  for (int i = 0; i < kMatrix; ++i) {
    __builtin_amdgcn_sched_group_barrier(kMatrixOrMulti, 1, 0);
    __builtin_amdgcn_sched_group_barrier(kVector, kTarget == Target::gfx942 ? 1 : 3, 0);
  }
}

/// A half of a strip, of bf16: c + a b' over its 32 numbers of k.
WEFT_GPU f32x4 mma_bf16(u32x4 a, u32x4 b, f32x4 c) {
#if defined(__gfx950__)
  using Operand = Vector<bf16_t, 8>;
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(Operand, a),
                                                 __builtin_bit_cast(Operand, b), c, 0, 0, 0);
#else
  using Operand = Vector<short, 4>;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
        __builtin_bit_cast(Operand, u32x2{a[2 * i], a[2 * i + 1]}),
        __builtin_bit_cast(Operand, u32x2{b[2 * i], b[2 * i + 1]}), c, 0, 0, 0);
  }
  return c;
#endif
}

/// The same of f32: over its 16 numbers of k, each product and sum in f32.
WEFT_GPU f32x4 mma_f32(u32x4 a, u32x4 b, f32x4 c) {
  const auto x = __builtin_bit_cast(f32x4, a);
  const auto y = __builtin_bit_cast(f32x4, b);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    c = __builtin_amdgcn_mfma_f32_16x16x4f32(x[i], y[i], c, 0, 0, 0);
  }
  return c;
}

/// c + a b': lane l's element r is row 4 (l / 16) + r (a's) of column l % 16 (b's).
template <Format kFormat>
WEFT_GPU f32x4 mma(const Strip& a, const Strip& b, f32x4 c) {
  if constexpr (kFormat == Format::fp8 && kTarget == Target::gfx950) {
    // One instruction over all 128; scales of zero bits choose its form that has none.
    using Operand = Vector<int, 8>;
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        __builtin_bit_cast(Operand, a), __builtin_bit_cast(Operand, b), c, 0, 0, 0, 0, 0, 0);
  } else {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kFormat == Format::bf16) {
        c = mma_bf16(a.half[h], b.half[h], c);
      } else if constexpr (kFormat == Format::f32) {
        c = mma_f32(a.half[h], b.half[h], c);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const u32x2 x{a.half[h][2 * i], a.half[h][2 * i + 1]};
          const u32x2 y{b.half[h][2 * i], b.half[h][2 * i + 1]};
          c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, x),
                                                         __builtin_bit_cast(long, y), c, 0, 0, 0);
        }
      }
    }
    return c;
  }
}

/// The 4:2-sparse instruction on gfx942 for at most 8 dense rows of fp8: each row is described as
/// two sparse rows, one with the first two of every four along k and one with the others, so that
/// no half of a 16-row operand is empty and an instruction covers twice the k.
struct SparseStrip {
  u32x2 half[2];
};

/// Lane l's strip must be that of dense row l % 16 / 2.
WEFT_GPU SparseStrip to_sparse(const Strip& dense) {
  const uint32_t pick = lane_index() % 2 == 0 ? 0x05040100 : 0x07060302;  // low or high halves
  SparseStrip sparse;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const u32x4 k = dense.half[h];
    sparse.half[h] = {__builtin_amdgcn_perm(k[1], k[0], pick),
                      __builtin_amdgcn_perm(k[3], k[2], pick)};
  }
  return sparse;
}

/// c + a b': lane l's elements 2 j and 2 j + 1 together are row 2 (l / 16) + j (a's) of column l
/// % 16.
WEFT_GPU f32x4 mma(const SparseStrip& a, const Strip& b, f32x4 c) {
  // Two bits for each stored element: which of its four it is. 0, 1 of all, or 2, 3.
  const int places = lane_index() % 2 == 0 ? 0x4444 : 0xeeee;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    c = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(__builtin_bit_cast(Vector<int, 2>, a.half[h]),
                                                     __builtin_bit_cast(Vector<int, 4>, b.half[h]),
                                                     c, places, 0, 0);
  }
  return c;
}

}  // namespace weft::cdna
