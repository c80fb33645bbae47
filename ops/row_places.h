// Rows of a step that are of sequences of their own.
#pragma once

#include <cstdint>

namespace weft {

/// On the device, [rows] each; null: rows are at consecutive positions of one sequence.
struct RowPlaces {
  const int32_t* positions = nullptr;
  const int32_t* sequences = nullptr;
  int64_t sequence_stride = 0;   ///< elements of a cache from one sequence's to the next one's
  int64_t frequency_stride = 0;  ///< of RoPE's inverse frequencies likewise; 0: all have the same
};

}  // namespace weft
