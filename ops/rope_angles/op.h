// rope_angles: the cosines and sines that rotary position embedding needs, once for all layers.
// The angle is the f32 product position * inverse_frequency[i], as checkpoints were trained with;
// its cosine and sine are then exact to f32, and times `scale` (YaRN's and LongRoPE's attention
// factor).
#pragma once

#include "base/range.h"

namespace weft {

struct RopeAnglesArgs {
  const int32_t* positions = nullptr;          ///< [rows]
  const float* inverse_frequencies = nullptr;  ///< [half]
  int64_t half = 0;                            ///< head_dim / 2
  float* cosines = nullptr;                    ///< [rows, half]
  float* sines = nullptr;                      ///< [rows, half]
  float scale = 1;
};

namespace reference {
/// cosines, sines: [rows.size(), half]
void rope_angles(const RopeAnglesArgs& args, Range rows, double* cosines, double* sines);
}  // namespace reference
namespace cpu {
void rope_angles(const RopeAnglesArgs& args, Range rows);
}

}  // namespace weft
