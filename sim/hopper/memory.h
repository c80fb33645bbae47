// The simulated GPU's memory, and the host's memory that it reads in place: allocations in one
// range of addresses that is reserved for them, with room between them that nobody may touch, so
// that the interpreter can refuse any other address before the host's own memory is harmed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::ptx {

/// Of an allocation's address; what accessible() keeps a count for.
inline constexpr uint64_t kGranule = 256;

/// The range's first address and bytes, and of each granule how many of its bytes are allocated,
/// from its beginning. Null and 0 before the first allocation.
struct MemoryMap {
  uint64_t base = 0;
  uint64_t bytes = 0;
  const uint16_t* allocated = nullptr;
};
extern MemoryMap memory_map;

/// Whether all of these bytes belong to one allocation. Bytes: at least 1.
inline bool accessible(uint64_t address, uint64_t bytes) {
  const uint64_t offset = address - memory_map.base;
  if (offset >= memory_map.bytes || bytes > memory_map.bytes - offset) {
    return false;
  }
  const uint64_t last = offset + bytes - 1;
  for (uint64_t granule = offset / kGranule; granule < last / kGranule; ++granule) {
    if (memory_map.allocated[granule] != kGranule) {
      return false;
    }
  }
  return last % kGranule < memory_map.allocated[last / kGranule];
}

/// Memory of which every byte is 0xff: a NaN in every format of floating point. Null: there is not
/// so much. Zero bytes are one.
void* allocate_memory(size_t bytes);
/// False: no allocation begins there.
bool free_memory(void* data);

/// Bytes of all allocations, and the most that there may be.
size_t allocated_memory();
size_t total_memory();

}  // namespace weft::ptx
