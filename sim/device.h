// The simulated GPU: memory, code objects, launches.
//
// A launch runs to its end before launch() returns. Workgroups that the device can hold at once
// (compute units, LDS, registers, waves) are resident together: each host thread goes round among
// its share of them, so a kernel whose workgroups wait for one another gets on. Workgroup n is on
// XCD n mod 8, as hardware deals them out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arch/cdna/code_object.h"
#include "base/result.h"
#include "sim/device_heap.h"
#include "sim/report.h"
#include "sim/target.h"

namespace weft::sim {

class Code;
class Memory;
class Module;
class SourceLines;
struct Hazard;

struct Dim3 {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

/// A kernel of a loaded module.
struct Kernel {
  const Module* module = nullptr;
  const cdna::Kernel* info = nullptr;  ///< name, arguments, registers, LDS, scratch
};

struct LaunchOptions {
  /// Look for reads of what was never written, missing waits, and LDS races. Bounds are always
  /// checked.
  bool sanitize = true;
  int threads = 0;  ///< of the host; 0: all usable ones
  /// 0: waves take turns as they come, and memory has no caches. Else waves and workgroups are
  /// interleaved at random, by this seed, and caches keep what they may for as long as they may
  /// (sim/caches.h); on one thread, so that a seed repeats.
  uint64_t seed = 0;
  /// All workgroups must be resident at once; where they cannot be, the launch is refused.
  bool cooperative = false;
  /// A launch hangs, and is ended with a finding, when for so many seconds all its waves are parked
  /// (sim/parking.h), or when for so many seconds of a host thread's processor time no workgroup
  /// has begun or ended and none that was under way has read or written a line of memory for the
  /// first time. Work that goes over the same memory for longer needs more.
  double hang_seconds = 30;
  /// Stack of a lane, where the kernel's own size depends on how it runs (recursion, arrays of
  /// variable size): hipLimitStackSize, whose default in ROCm is this.
  uint32_t stack_bytes = 1024;
};

/// A code object in the device's memory. The device must outlive it.
class Module {
 public:
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// nullptr: no such kernel.
  const Kernel* kernel(std::string_view name) const;
  struct Global {
    uint64_t address = 0;
    uint64_t bytes = 0;
  };
  std::optional<Global> global(std::string_view name) const;
  const Code& code() const { return *code_; }

 private:
  friend class Device;
  Module() = default;
  std::vector<std::byte> bytes_;
  cdna::CodeObject object_;
  std::unique_ptr<Code> code_;
  std::vector<Hazard> hazards_;
  std::unique_ptr<SourceLines> lines_;
  Memory* memory_ = nullptr;
  uint64_t image_ = 0;  ///< where its address 0 is
  std::vector<Kernel> kernels_;
};

/// One GPU. All members may be called by several threads at once, and launches of devices that
/// share a Memory then run side by side.
class Device {
 public:
  /// A device with a memory of its own.
  explicit Device(Target target);
  /// One more of those that share a memory: a node's, or a process's.
  Device(Target target, std::shared_ptr<Memory> memory);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  Target target() const { return target_; }
  Memory& memory() { return *memory_; }
  int index() const { return index_; }  ///< in memory()

  /// Zeroed; the address is the host's, too, so the host copies to and from it directly.
  Result<uint64_t> allocate(size_t bytes);
  Status free(uint64_t address);

  /// Errors (input): not a code object, or one for another target.
  Result<std::shared_ptr<Module>> load(std::span<const std::byte> code_object);

  /// How many workgroups of a kernel a compute unit holds at once; 0: not one.
  int groups_per_unit(const Kernel& kernel, int threads, uint64_t dynamic_lds) const;

  /// What launch() would refuse. Errors (usage): workgroups that the device cannot hold, or too few
  /// arguments.
  Status check(const Kernel& kernel, Dim3 grid, Dim3 block, uint32_t dynamic_lds,
               size_t argument_bytes, bool cooperative) const;

  /// Runs a kernel. `arguments`: the explicit ones, packed as the kernel's metadata says; hidden
  /// ones are filled in. Errors: those of check(). What the program does wrong is in the report.
  Result<LaunchReport> launch(const Kernel& kernel, Dim3 grid, Dim3 block, uint32_t dynamic_lds,
                              std::span<const std::byte> arguments,
                              const LaunchOptions& options = {});

 private:
  Target target_;
  std::shared_ptr<Memory> memory_;
  int index_ = 0;
  DeviceHeap heap_;
};

}  // namespace weft::sim
