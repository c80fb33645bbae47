#include "sim/lane_addresses.h"

#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/lane_addresses-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

namespace {

/// Lanes without a gap between them, and how far the second is from the first.
template <class T>
struct Neighbours {
  int first = 0;
  int count = 0;  ///< 0: there is a gap, or no row has that step
  T step = 0;

  /// `bytes`: of each.
  Neighbours(const T* addresses, uint64_t mask, uint64_t bytes) : first(std::countr_zero(mask)) {
    constexpr uint64_t kMostStep = 64;
    const int lanes = ~mask == 0 ? kLanes : std::popcount(mask);
    if (mask == 0 || mask >> first != ~uint64_t{0} >> (kLanes - lanes)) {
      return;
    }
    step = lanes == 1 ? static_cast<T>(bytes) : addresses[first + 1] - addresses[first];
    const bool apart = step > bytes && step <= kMostStep && std::has_single_bit(step);
    count = step == 0 || step == bytes || apart ? lanes : 0;
  }

  LaneRow row(uint64_t mask, uint64_t begin, uint64_t bytes) const {
    if (step != 0 && step != bytes && begin % step + bytes > step) {
      return {};
    }
    return {mask, begin, begin + static_cast<uint64_t>(count - 1) * step + bytes, step};
  }
};

}  // namespace

void LaneRow::list(uint64_t* addresses) const {
  WEFT_SIM_PICK(list_row)
  (begin, step, std::popcount(mask), addresses + std::countr_zero(mask));
}

LaneRow row_of(const uint64_t* addresses, uint64_t mask, uint64_t bytes) {
  const Neighbours<uint64_t> lanes(addresses, mask, bytes);
  if (lanes.count == 0 ||
      !WEFT_SIM_PICK(equally_apart<uint64_t>)(addresses + lanes.first, lanes.count, lanes.step)) {
    return {};
  }
  return lanes.row(mask, addresses[lanes.first], bytes);
}

LaneRow row_of(const uint32_t* low, const uint32_t* high, uint64_t base, uint64_t mask,
               uint64_t bytes) {
  if (~mask == 0 && low[1] - low[0] == bytes) [[likely]] {
    return WEFT_SIM_PICK(row_of_all)(low, high, base, static_cast<uint32_t>(bytes));
  }
  const Neighbours<uint32_t> lanes(low, mask, bytes);
  if (lanes.count == 0) {
    return {};
  }
  const uint32_t* from = low + lanes.first;
  const auto steps = static_cast<uint64_t>(lanes.count - 1);
  if (*from + steps * lanes.step > UINT32_MAX ||
      !WEFT_SIM_PICK(equally_apart<uint32_t>)(from, lanes.count, lanes.step) ||
      (high != nullptr &&
       !WEFT_SIM_PICK(equally_apart<uint32_t>)(high + lanes.first, lanes.count, uint32_t{0}))) {
    return {};
  }
  const uint64_t top = high != nullptr ? static_cast<uint64_t>(high[lanes.first]) << 32 : 0;
  return lanes.row(mask, base + top + *from, bytes);
}

void load_quads(const void* memory, uint32_t* out) { WEFT_SIM_PICK(load_quads)(memory, out); }
void store_quads(const uint32_t* data, void* memory) { WEFT_SIM_PICK(store_quads)(data, memory); }

void load_pairs(const void* memory, uint32_t* out) { WEFT_SIM_PICK(load_pairs)(memory, out); }
void store_pairs(const uint32_t* data, void* memory) { WEFT_SIM_PICK(store_pairs)(data, memory); }

void load_every_fourth(const void* memory, uint32_t* out) {
  WEFT_SIM_PICK(load_every_fourth)(memory, out);
}
void store_every_fourth(const uint32_t* data, void* memory) {
  WEFT_SIM_PICK(store_every_fourth)(data, memory);
}

void load_every_other(const void* memory, uint32_t* out) {
  WEFT_SIM_PICK(load_every_other)(memory, out);
}
void store_every_other(const uint32_t* data, void* memory) {
  WEFT_SIM_PICK(store_every_other)(data, memory);
}

void wide_addresses(const uint32_t* low, const uint32_t* high, uint64_t base, uint64_t* address) {
  WEFT_SIM_PICK(wide_addresses)(low, high, base, address);
}

uint64_t buffer_addresses(const uint32_t* offset, uint32_t immediate, uint64_t base, int64_t most,
                          uint64_t* address) {
  return WEFT_SIM_PICK(buffer_addresses)(offset, immediate, base, most, address);
}

}  // namespace weft::sim
