// What the resident kernel on CDNA is launched with.
#pragma once

#include <cstdint>

#include "engine/cdna/layout.h"
#include "engine/resident/code.h"

namespace weft::cdna {

/// What a worker asks for ahead of a product's code.
struct ProductPlace {
  uint32_t stream = 0;  ///< ProductCode::stream
  int32_t units = 0;
  int32_t slices = 0;  ///< of a unit
  int32_t part = 0;    ///< slices of a part
  uint32_t flags = 0;  ///< see below; from kForm on the WeightForm
  uint32_t lists = 0;  ///< of packed weights: where their first block's are in list_begin
  /// Of drawn experts: how many, | the first one's slot << 8; 0: none. Of `units` each is there for
  /// each slot, and in the stream for each expert.
  uint32_t slots = 0;
  int32_t expert_units = 0;  ///< of one

  static constexpr uint32_t kHead = 1;        ///< CodeHead::head
  static constexpr uint32_t kAwaitsDraw = 2;  ///< the step's first product of its draw
  static constexpr int kForm = 8;             ///< bit
  constexpr WeightForm form() const { return static_cast<WeightForm>(flags >> kForm); }
  constexpr int first_slot() const { return static_cast<int>(slots >> 8); }
  constexpr int walked_slots() const { return slots != 0 ? static_cast<int>(slots & 0xff) : 1; }
};

struct DecodeLaunch : resident::Launch {
  const ProductPlace* products =
      nullptr;  ///< all workers' products, in the order of codes; one after them
  const uint32_t* product_begin = nullptr;  ///< [workers + 1]
  const uint32_t* stream_bytes = nullptr;   ///< [workers]
  const Listed* listed = nullptr;           ///< lists of packed weights, one after the other
  const uint32_t* list_begin = nullptr;     ///< [blocks][kTeamWaves] in `listed`, then the end
  /// [workers * kCounterStride]: the host writes what is not 0 into all of them when a launch lasts
  /// too long. Each worker looks at its own while it waits, leaves what it waited for in
  /// `failure` [workers], and ends.
  const uint32_t* give_up = nullptr;
};

}  // namespace weft::cdna
