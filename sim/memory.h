// The device's memory: allocations at host addresses, and how instructions reach them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>

#include "base/result.h"
#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

/// Allocations. A device address is the host address of the same byte, so the host copies without
/// translation; every access of a program is checked against the live allocations. Between two
/// allocations lie at least 64 KiB that belong to none.
class Memory {
 public:
  explicit Memory(uint64_t capacity) : capacity_(capacity) {}
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Zeroed memory of this many bytes at a multiple of 4096. Errors (device): none left.
  Result<uint64_t> allocate(size_t bytes);
  /// Errors (device): no allocation begins there.
  Status free(uint64_t address);

  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint8_t* touched = nullptr;  ///< a byte for each 128-byte line: bit 0 read, bit 1 written
  };
  /// The live allocation that holds the address, or none.
  bool find(uint64_t address, Range& range) const;
  /// "12 bytes past the end of an allocation of 4096 bytes", for a message.
  std::string describe(uint64_t address) const;

  uint64_t used() const { return used_; }
  uint64_t capacity() const { return capacity_; }

  /// Forgets which lines were touched.
  void clear_touched();
  /// Counts the lines touched since, into bytes read and written.
  void count_touched(uint64_t& read, uint64_t& written) const;

 private:
  struct Allocation {
    uint64_t end = 0;
    size_t mapped = 0;
    std::unique_ptr<uint8_t[]> touched;
  };
  static size_t lines_of(uint64_t begin, uint64_t end) {
    return static_cast<size_t>((end - begin + 127) / 128);
  }

  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Allocation> live_;
  uint64_t used_ = 0;
  uint64_t capacity_;
};

/// Host address of `bytes` at a global address that a scalar instruction uses; nullptr, with a
/// finding, where no allocation holds them.
void* reach_scalar(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes,
                   bool write);

/// Checks lanes' global addresses, each of `bytes`. Lanes that reach no allocation are taken out of
/// the mask, with a finding. Counts what is touched.
uint64_t reach_lanes(Wave& wave, const Instruction& instruction, const uint64_t* addresses,
                     uint64_t mask, int bytes, bool read, bool write);

}  // namespace weft::sim
