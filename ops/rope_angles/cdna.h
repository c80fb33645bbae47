// rope_angles on AMD: what the host hands to the kernel of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// A thread for each of `count` angles.
struct RopeAnglesParams {
  const int32_t* positions;  ///< of rows; null: first, first + 1, ...
  const int32_t* sequences;  ///< likewise; null: all have the same frequencies
  const float* inverse_frequencies;
  float* cosines;
  float* sines;
  int64_t frequency_stride;  ///< elements to the next sequence's frequencies
  int32_t first;
  int32_t half;
  int32_t count;
  float scale;
};

}  // namespace weft::cdna
