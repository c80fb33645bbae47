// moe_layer on AMD: what the host hands to the kernels of cdna.hip. Strides are bytes.
#pragma once

#include <cstdint>

namespace weft::cdna {

inline constexpr int kMoeLayerRouterRows = 16;
inline constexpr int kMoeLayerRouterColumns = 32;
struct MoeLayerRouterParams {
  const void* x;
  const void* router;
  float* logits;   ///< [rows, experts]
  int32_t* ids;    ///< of slots that rows have undrawn, the last of `per_row`; null: none
  float* weights;  ///< likewise
  int64_t x_stride;
  int64_t router_stride;
  int32_t rows;
  int32_t experts;
  int32_t k;
  int32_t tiles_n;
  int32_t per_row;
};

inline constexpr int kMoeLayerExperts = 96;
inline constexpr int kMoeLayerTileM = 128;  ///< at most: tiles have as many rows as 16 divides
/// Columns of weights: of a gated product half of each. gfx950, whose matrix units are twice as
/// fast and whose LDS is larger, has twice as many, or it would be bound by the LDS.
constexpr int kMoeLayerTileN(bool gfx950) { return gfx950 ? 256 : 128; }
struct MoeLayerMatrix {
  const void* data;
  int64_t stride;
};
/// out[slot] = a[slot / per_row] w, or the gated one of two, w [k, n] being the slot's expert's.
struct MoeLayerProductParams {
  const void* a;
  const int32_t* order;
  void* out;
  int64_t a_stride;
  int64_t out_stride;
  int32_t experts;
  int32_t per_row;
  int32_t n;
  int32_t k;
  int32_t tiles_n;
  MoeLayerMatrix w[2][kMoeLayerExperts];  ///< gate and up, or one alone
};

struct MoeLayerSumParams {
  const void* products;  ///< [slots, n]
  const float* weights;
  void* out;
  int64_t out_stride;
  int32_t n;
  int32_t per_row;
};

}  // namespace weft::cdna
