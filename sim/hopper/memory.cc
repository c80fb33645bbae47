#include "sim/hopper/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>

#include "base/divide.h"

namespace weft::ptx {

MemoryMap memory_map;

namespace {

constexpr uint64_t kReserved = uint64_t{1} << 38;
constexpr uint64_t kGap = uint64_t{64} << 10;  // between two allocations, at least

/// All of it, under one lock: allocations are few.
class Memory {
 public:
  static Memory& instance() {
    static Memory memory;
    return memory;
  }

  void* allocate(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    bytes = std::max<uint64_t>(bytes, 1);
    uint64_t at = 0;
    if (!reserve() || bytes > total_memory() - std::min(in_use_, total_memory()) ||
        !find(bytes, at)) {
      return nullptr;
    }
    auto* const data = reinterpret_cast<char*>(memory_map.base + at);
    if (mprotect(data, round_up(bytes, page_), PROT_READ | PROT_WRITE) != 0) {
      return nullptr;
    }
    std::memset(data, 0xff, bytes);
    mark(at, bytes, true);
    allocations_[at] = bytes;
    next_ = at + round_up(bytes, page_) + kGap;
    in_use_ += bytes;
    return data;
  }

  bool release(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = allocations_.find(reinterpret_cast<uint64_t>(data) - memory_map.base);
    if (found == allocations_.end()) {
      return false;
    }
    const auto [at, bytes] = *found;
    mark(at, bytes, false);
    // Given back, and what is still used of it is a fault.
    mmap(data, round_up(bytes, page_), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    in_use_ -= bytes;
    allocations_.erase(found);
    return true;
  }

  size_t in_use() {
    const std::lock_guard lock(mutex_);
    return in_use_;
  }

 private:
  bool reserve() {
    if (memory_map.bytes != 0) {
      return true;
    }
    const auto map = [](uint64_t bytes, int access) {
      return mmap(nullptr, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    };
    void* const range = map(kReserved, PROT_NONE);
    void* const counts = map(kReserved / kGranule * sizeof(uint16_t), PROT_READ | PROT_WRITE);
    if (range == MAP_FAILED || counts == MAP_FAILED) {
      return false;
    }
    counts_ = static_cast<uint16_t*>(counts);
    memory_map = {reinterpret_cast<uint64_t>(range), kReserved, counts_};
    return true;
  }

  /// A place with room around it: behind the last one, so that what was freed is not soon in use
  /// again, or else the first that there is.
  bool find(uint64_t bytes, uint64_t& at) const {
    const uint64_t wanted = round_up(bytes, page_) + kGap;
    for (const uint64_t from : {next_, kGap}) {
      uint64_t begin = from;
      for (auto other = allocations_.lower_bound(from); other != allocations_.end(); ++other) {
        if (begin + wanted <= other->first) {
          break;
        }
        begin = other->first + round_up(other->second, page_) + kGap;
      }
      if (begin + wanted <= kReserved) {
        at = begin;
        return true;
      }
    }
    return false;
  }

  void mark(uint64_t at, uint64_t bytes, bool allocated) {
    uint16_t* const first = counts_ + at / kGranule;
    std::fill_n(first, bytes / kGranule, static_cast<uint16_t>(allocated ? kGranule : 0));
    if (bytes % kGranule != 0) {
      first[bytes / kGranule] = static_cast<uint16_t>(allocated ? bytes % kGranule : 0);
    }
  }

  std::mutex mutex_;
  const uint64_t page_ = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  uint16_t* counts_ = nullptr;
  std::map<uint64_t, uint64_t> allocations_;  // bytes by offset
  uint64_t next_ = kGap;
  uint64_t in_use_ = 0;
};

}  // namespace

void* allocate_memory(size_t bytes) { return Memory::instance().allocate(bytes); }
bool free_memory(void* data) { return Memory::instance().release(data); }
size_t allocated_memory() { return Memory::instance().in_use(); }
size_t total_memory() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace weft::ptx
