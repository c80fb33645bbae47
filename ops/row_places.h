// Rows of a step that are of sequences of their own.
#pragma once

#include <cstdint>

namespace weft {

/// On the device, [rows] each; null: rows are at consecutive positions of one sequence.
struct RowPlaces {
  const int32_t* positions = nullptr;
  const int32_t* sequences = nullptr;
  int64_t sequence_stride = 0;  ///< elements of a cache from one sequence's to the next one's
};

}  // namespace weft
