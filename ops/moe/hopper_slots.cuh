// What the products of slots with their experts' weights share on sm_90a.
#pragma once

#include <cstdint>

#include "arch/hopper/copy.cuh"
#include "arch/hopper/resident.cuh"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/linear/forms/fp8/hopper_prefill.cuh"
#include "ops/moe/prefill.h"

namespace weft::hopper {

/// What weights are in.
enum class SlotWeights : uint8_t { bf16, mxfp4, e4m3 };

/// The slots of an expert, in ascending order.
struct OwnSlots {
  const int32_t* slots;
  int count;
};
__device__ inline OwnSlots slots_of(const PrefillDraw& drawn, int expert) {
  const int begin = drawn.order[expert];
  return {drawn.order + drawn.experts + 1 + begin, drawn.order[expert + 1] - begin};
}

/// The product of slots with their experts' weights: out[slot] = a[slot / per_row] * w, or the
/// gated one of two.
struct SlotsProduct {
  ConstMatrix a;
  PrefillDraw drawn;
  int32_t per_row = 1;  ///< slots that share a row of a
  ExpertMatrices w[2];  ///< gate and up, or one alone
  ConstVector bias[2] = {};
  int32_t n = 0, k = 0;
  Activation activation = Activation::none;
  float limit = 0;
  Matrix out;
};
__device__ inline ConstMatrix of_expert(const ExpertMatrices& all, int expert) {
  return {static_cast<const char*>(all.first.data) + expert * all.pitch, all.first.dtype,
          all.first.stride};
}
__device__ inline const uint8_t* scales_of(const ExpertMatrices& all, int expert) {
  return static_cast<const uint8_t*>(of_expert(all, expert).data) + all.scales;
}
__device__ inline float bias_of(const SlotsProduct& args, int which, int expert, int64_t column) {
  const ConstVector& bias = args.bias[which];
  return bias.data != nullptr ? load_x1(bias, int64_t{expert} * args.n + column) : 0.0f;
}
/// Of out, of a slot's sums in `column`: of gated products what those of gate and of up make, or
/// the first alone.
template <bool kGated>
__device__ __forceinline__ float column_of(const SlotsProduct& args, int expert, int column,
                                           float first, float second) {
  const float x = first + bias_of(args, 0, expert, column);
  if constexpr (kGated) {
    return gate_with(args.activation, args.limit, x, second + bias_of(args, 1, expert, column));
  }
  return x;
}
/// Writes columns `column` and the next of a slot, whose row of `out` begins at `to`: bf16 of gated
/// products, otherwise f32. See column_of().
template <bool kGated>
__device__ __forceinline__ void store_columns(const SlotsProduct& args, int expert, int64_t to,
                                              int column, const float* gates, const float* ups) {
  float x[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    x[c] = column_of<kGated>(args, expert, column + c, gates[c], ups[c]);
  }
  if constexpr (kGated) {
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.out.data) + to + column) =
        pack_bf16x2(x[0], x[1]);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(args.out.data) + to + column) = {x[0], x[1]};
  }
}

/// Two codes in e4m3fn as bf16, which has all their numbers.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
  const float2 x = e4m3_numbers(codes);
  return pack_bf16x2(x.x, x.y);
}
/// Where the scale of an expert's columns and k from `column` and `at` on lies.
__device__ inline const float* block_scale(const ExpertMatrices& w, int expert, int k, int column,
                                           int at) {
  const auto* const own = reinterpret_cast<const float*>(
      reinterpret_cast<const char*>(w.block_scales) + expert * w.block_scales_pitch);
  return own + column / kScaleBlock * scale_blocks(k) + at / kScaleBlock;
}

}  // namespace weft::hopper
