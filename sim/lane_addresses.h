// Lanes' addresses, 64 at once.
#pragma once

#include <bit>
#include <cstdint>

namespace weft::sim {

/// Lanes that reach memory in one piece, as nearly all do: neighbours, each of whose bytes are
/// equally far from those of the one before, and no further than 64 bytes.
struct LaneRow {
  uint64_t mask = 0;  ///< the lanes; 0: they are in no row
  uint64_t begin = 0;
  uint64_t end = 0;   ///< behind the last lane's bytes
  uint64_t step = 0;  ///< from a lane to the next: 0, as much as a lane has, or a power of two

  bool describes(uint64_t lanes) const { return mask == lanes && mask != 0; }
  /// Of a lane of the mask.
  uint64_t address(int lane) const {
    return begin + static_cast<uint64_t>(lane - std::countr_zero(mask)) * step;
  }
  /// Of each.
  void list(uint64_t* addresses) const;
};
LaneRow row_of(const uint64_t* addresses, uint64_t mask, uint64_t bytes);
/// Of base + low[l] + (high[l] << 32) or, without `high`, base + low[l]; not one where a sum of the
/// low words carries.
LaneRow row_of(const uint32_t* low, const uint32_t* high, uint64_t base, uint64_t mask,
               uint64_t bytes);

/// Four words of each lane that lie one lane after the other, to four registers and back.
void load_quads(const void* memory, uint32_t* out);
void store_quads(const uint32_t* data, void* memory);
/// Likewise two words.
void load_pairs(const void* memory, uint32_t* out);
void store_pairs(const uint32_t* data, void* memory);
/// A word of each lane, eight bytes from one to the next.
void load_every_other(const void* memory, uint32_t* out);
void store_every_other(const uint32_t* data, void* memory);
/// Likewise sixteen bytes.
void load_every_fourth(const void* memory, uint32_t* out);
void store_every_fourth(const uint32_t* data, void* memory);

/// address[l] = base + low[l] + (high[l] << 32).
void wide_addresses(const uint32_t* low, const uint32_t* high, uint64_t base, uint64_t* address);
/// address[l] = base + offset[l] + immediate, of which the sum of the last two is a 33-bit place in
/// a buffer. Returns the lanes whose place is beyond `most`.
uint64_t buffer_addresses(const uint32_t* offset, uint32_t immediate, uint64_t base, int64_t most,
                          uint64_t* address);

}  // namespace weft::sim
