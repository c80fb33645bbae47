// Matrix products of a wave in units of strips: 16 rows of 128 bytes, which is 128 fp8 numbers or
// 64 bf16. One mma() is what a strip of a and a strip of b give together: a 16 x 16 product.
// Layouts: arch/cdna/matrix_layout.h.
#pragma once

#include "arch/cdna/gpu.hip.h"

namespace weft::cdna {

enum class Format { bf16, fp8 };  ///< fp8: e4m3fnuz on gfx942, e4m3fn on gfx950

inline constexpr int kStripRows = 16;
inline constexpr int kStripBytes = 128;

/// Lane l holds 32 bytes of row l % 16: half h is bytes 64 h + 16 (l / 16) and the next 15. Which
/// numbers of k they are does not matter to a product, as long as both operands agree.
struct Strip {
  u32x4 half[2];
};

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
      if constexpr (kFormat == Format::bf16 && kTarget == Target::gfx950) {
#if defined(__gfx950__)
        using Operand = Vector<bf16_t, 8>;
        c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(Operand, a.half[h]),
                                                    __builtin_bit_cast(Operand, b.half[h]), c, 0, 0,
                                                    0);
#endif
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const u32x2 x{a.half[h][2 * i], a.half[h][2 * i + 1]};
          const u32x2 y{b.half[h][2 * i], b.half[h][2 * i + 1]};
          if constexpr (kFormat == Format::fp8) {
            c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(__builtin_bit_cast(long, x),
                                                           __builtin_bit_cast(long, y), c, 0, 0, 0);
          } else {
            using Operand = Vector<short, 4>;
            c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
                __builtin_bit_cast(Operand, x), __builtin_bit_cast(Operand, y), c, 0, 0, 0);
          }
        }
      }
    }
    return c;
  }
}

}  // namespace weft::cdna
