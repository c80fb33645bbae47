// mla_layer on AMD: what the host hands to the kernels of cdna.hip.
#pragma once

#include "ops/cdna_gemm.h"

namespace weft::cdna {

inline constexpr int kHeadTileM = 64;
inline constexpr int kHeadTileN = 128;

/// Products of each head: `of` is the first one's. From one head to the next, in bytes.
struct HeadsParams {
  GemmTask of;
  int64_t a_pitch;
  int64_t b_pitch;
  int64_t out_pitch;
  const void* angles;  ///< of the position that queries are turned by; of values null
  int32_t* lengths;    ///< of queries: [m], to be set
  int32_t length;
};

}  // namespace weft::cdna
