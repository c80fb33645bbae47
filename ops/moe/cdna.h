// moe on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include <cstdint>

#include "base/activation.h"

namespace weft::cdna {

struct MoeRouteParams {
  const float* logits;
  const void* correction;  ///< or null
  int32_t* ids;
  float* weights;
  int64_t logits_stride;  ///< elements
  int64_t slot_stride;    ///< from a row's first slot to the next one's
  int32_t rows;
  int32_t experts;
  int32_t chosen;
  int32_t sigmoid;
  int32_t renormalise;
  int32_t groups;  ///< at most kMoeGroups
  int32_t kept_groups;
  int32_t correction_format;  ///< as bias_format
  float scale;
};
inline constexpr int kMoeGroups = 64;
inline constexpr int kMoeRouteRows = 4;  ///< of a workgroup

struct MoeSortParams {
  const int32_t* ids;
  int32_t* order;
  int32_t slots;
  int32_t experts;
};

/// An expert's matrix, and the others' behind it. Strides are bytes.
struct MoeMatrices {
  const void* first;
  int64_t pitch;
  int64_t stride;
  int64_t scales;    ///< in MXFP4: from a matrix to its scales
  const void* bias;  ///< of all experts, in bf16 or f16 or f32, or null
  /// In e4m3fn: the first one's scales of 128 x 128, and bytes to the next one's.
  const float* block_scales;
  int64_t block_pitch;
};

/// out[slot] = a[slot / per_row] w', or the gated one of two. Strides are bytes.
struct MoeProductParams {
  const void* a;
  const int32_t* order;
  void* out;
  MoeMatrices w[2];  ///< gate and up, or one alone
  int64_t a_stride;
  int64_t out_stride;
  int32_t experts;
  int32_t per_row;
  int32_t n;
  int32_t k;
  int32_t tiles_n;
  int32_t row_blocks;   ///< workgroups that share an expert's rows
  int32_t bias_format;  ///< 0: f32, 1: bf16, 2: f16
  Activation activation;
  float limit;
};
inline constexpr int kMoeColumns = 128;    ///< rows of weights of a workgroup
inline constexpr int kMoeFewColumns = 32;  ///< the same where it has few rows of a
inline constexpr int kMoeFewRows = 16;

struct MoeSumParams {
  const float* products;
  const float* weights;
  void* out;
  int64_t out_stride;  ///< bytes
  int32_t n;
  int32_t chosen;
  int32_t accumulate;  ///< to a result in f32
  float alpha;
};

}  // namespace weft::cdna
