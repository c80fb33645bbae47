// The heap of a device: what malloc() in a kernel takes its memory from. ROCm's device library
// (dm.cl) does the bookkeeping, in memory that the runtime gives it zeroed (hidden_heap_v1), and
// asks the host for large pieces by host calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/result.h"

namespace weft::sim {

class Memory;

class DeviceHeap {
 public:
  explicit DeviceHeap(Memory& memory) : memory_(memory) {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  /// Where the library's bookkeeping is, from the first time on that it is asked for. Errors
  /// (device): no memory for it.
  Result<uint64_t> bookkeeping();
  /// A piece of so many bytes, at a multiple of 2 MiB; 0: there is none.
  uint64_t give(uint64_t bytes);
  /// Takes a piece back. What is none is let be, as free() does.
  void take(uint64_t address);

 private:
  Memory& memory_;
  std::mutex mutex_;
  uint64_t bookkeeping_ = 0;
  std::map<uint64_t, uint64_t> pieces_;  ///< the allocation of each
};

}  // namespace weft::sim
