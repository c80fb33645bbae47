#include "sim/lane_addresses.h"

#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/lane_addresses-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

LaneRow row_of(const uint64_t* addresses, uint64_t mask, uint64_t bytes) {
  constexpr uint64_t kMostStep = 64;
  const int first = std::countr_zero(mask);
  const int lanes = std::popcount(mask);
  if (mask == 0 || mask >> first != ~uint64_t{0} >> (kLanes - lanes)) {
    return {};
  }
  const uint64_t begin = addresses[first];
  const uint64_t step = lanes == 1 ? bytes : addresses[first + 1] - begin;
  const bool apart = step <= kMostStep && std::has_single_bit(step) && begin % step + bytes <= step;
  if ((step != 0 && step != bytes && !apart) ||
      !WEFT_SIM_PICK(equally_apart)(addresses + first, lanes, step)) {
    return {};
  }
  return {mask, begin, begin + static_cast<uint64_t>(lanes - 1) * step + bytes, step};
}

void wide_addresses(const uint32_t* low, const uint32_t* high, uint64_t base, uint64_t* address) {
  WEFT_SIM_PICK(wide_addresses)(low, high, base, address);
}

uint64_t buffer_addresses(const uint32_t* offset, uint32_t immediate, uint64_t base, int64_t most,
                          uint64_t* address) {
  return WEFT_SIM_PICK(buffer_addresses)(offset, immediate, base, most, address);
}

}  // namespace weft::sim
