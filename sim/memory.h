// The memory of one device or of several that share an address space: allocations at host
// addresses, and how instructions reach them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/coherence.h"
#include "sim/lane_addresses.h"

namespace weft::sim {

struct Instruction;
struct Wave;

inline constexpr int kMaxDevices = 32;  ///< that share a Memory
inline constexpr int kHost = -1;        ///< in place of a device's number

/// When others see what a kernel stores in an allocation (HIP, "Coherency control"; LLVM, AMDGPU
/// user guide, "Memory Model GFX942").
enum class Grain : uint8_t {
  coarse,    ///< when the kernel has ended: hipMalloc
  fine,      ///< while it runs, by accesses of system scope: hipHostMalloc, hipMallocManaged
  uncached,  ///< as fine, and no device's cache keeps it: hipDeviceMallocUncached
};

/// Where an allocation lies.
struct Placement {
  int home = 0;  ///< a device, or kHost
  Grain grain = Grain::coarse;
};

/// Allocations. A device address is the host address of the same byte, for all devices, so the host
/// copies without translation; every access of a program is checked against the live allocations.
/// Between two allocations lie at least 64 KiB that belong to none.
class Memory {
 public:
  Memory() = default;
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// The number of a further device, with so many bytes of memory; at most kMaxDevices.
  int add_device(uint64_t capacity);

  /// Zeroed memory of this many bytes at a multiple of 4096. Errors (device): none left.
  Result<uint64_t> allocate(size_t bytes, Placement placement = {});
  /// Makes memory that is there already an allocation. Errors: part of it is one (usage), or none
  /// is left for its shadow (device).
  Status add(uint64_t address, size_t bytes, Placement placement);
  /// Errors (device): no allocation begins there.
  Status free(uint64_t address);

  struct Range {
    uint64_t begin = 1;
    uint64_t end = 0;
    Placement placement;
    Shadow shadow;
  };
  /// The live allocation that holds the address, or none.
  bool find(uint64_t address, Range& range) const;
  /// Changes the grain of the allocation that begins there; false: none does.
  bool set_grain(uint64_t address, Grain grain);
  /// "12 bytes past the end of an allocation of 4096 bytes", for a message.
  std::string describe(uint64_t address) const;

  /// Whether kernels of a device may reach what lies at `home`: its own and the host's memory
  /// always, another device's once that is enabled.
  bool reaches(int device, int home) const {
    return home == kHost || home == device ||
           (peers_[static_cast<size_t>(device)].load(std::memory_order_relaxed) >> home & 1) != 0;
  }
  /// False: it was so before.
  bool set_peer(int device, int home, bool reached);

  uint64_t capacity(int device) const;
  /// Bytes allocated in a device, or in the host.
  uint64_t used(int home) const;
  Coherence& coherence() { return coherence_; }

  /// Held while a kernel or a copy runs: what is freed meanwhile is no allocation any more but
  /// stays mapped, so that they find out and nothing else happens.
  class Use {
   public:
    explicit Use(Memory& memory);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    Memory& memory_;
  };

  /// A workgroup of any device began, ended or went on to new memory, or the host changed
  /// something: what a kernel that waits may be waiting for. Launches tell by the count that others
  /// still get on.
  void note_progress() { progress_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

 private:
  struct Mapping {
    uint64_t begin = 0;
    size_t bytes = 0;
  };
  struct Allocation {
    uint64_t end = 0;
    Mapping mapping;  ///< of it and its shadow; of memory that was there already, the shadow's
    Shadow shadow;
    Placement placement;
  };
  static void unmap(const Mapping& mapping);

  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Allocation> live_;
  std::vector<Mapping> freed_;  ///< and still mapped, because of uses_
  int uses_ = 0;
  int devices_ = 0;
  std::array<uint64_t, kMaxDevices + 1> used_{};  ///< by home + 1
  std::array<uint64_t, kMaxDevices> capacity_{};
  std::array<std::atomic<uint32_t>, kMaxDevices> peers_{};
  std::atomic<uint64_t> progress_{0};
  Coherence coherence_;
};

/// Which lines of 128 bytes a launch read and wrote.
class Touched {
 public:
  /// A byte for each line of an allocation, the first that of the allocation's begin: 1 when it was
  /// touched. Host threads may set the same byte.
  struct Lines {
    uint8_t* read = nullptr;
    uint8_t* written = nullptr;
  };
  Lines of(const Memory::Range& range);
  /// Adds the bytes of all lines touched.
  void count(uint64_t& read, uint64_t& written) const;

 private:
  struct Free {
    void operator()(uint8_t* lines) const { std::free(lines); }
  };
  struct Bytes {
    std::unique_ptr<uint8_t[], Free> read;
    std::unique_ptr<uint8_t[], Free> written;
    size_t count = 0;
  };
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, Bytes> allocations_;  ///< by where they begin
};

/// Host address of `bytes` at a global address that a scalar instruction uses; nullptr, with a
/// finding, where no allocation holds them.
void* reach_scalar(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes,
                   bool write);

/// Checks lanes' global addresses, each of `bytes`. Lanes that reach no allocation are taken out of
/// the mask, with a finding. Counts what is touched. `row`: theirs, if they are in one.
uint64_t reach_lanes(Wave& wave, const Instruction& instruction, const uint64_t* addresses,
                     uint64_t mask, int bytes, bool read, bool write, LaneRow& row);
/// The same of lanes that are in a row, if all of it is in one allocation; otherwise false, and
/// nothing was done.
bool reach_row(Wave& wave, const Instruction& instruction, const LaneRow& row, int bytes, bool read,
               bool write);

}  // namespace weft::sim
