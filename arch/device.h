// A device beside the CPU: an NVIDIA GPU through the CUDA runtime (arch/hopper/), an AMD GPU
// through HIP's module API or the simulator that answers the same API (arch/cdna/). What a kernel's
// launch, a check and a benchmark need, and no more; how a target does it is its own affair.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft {

/// The families of targets that operations have kernels for.
enum class Arch : uint8_t { cpu, hopper, cdna };
std::string_view name_of(Arch arch);  ///< as the kernels' files are named: "cpu", "hopper", "cdna"

/// The arithmetic whose peak rate can bound an operation.
enum class Peak : uint8_t { f32, bf16, fp8 };
inline constexpr int kPeaks = 3;
std::string_view name_of(Peak peak);

/// What a device is. Plain numbers, so that a dispatch is a pure function of it: tests make one up.
struct DeviceInfo {
  std::string id;      ///< as --device names it: "cuda:0", "hip:0", "sim:gfx942"
  std::string name;    ///< as its driver names it: "NVIDIA H200"
  std::string target;  ///< what its kernels are compiled for: "sm_90a", "gfx942", "gfx950"
  Arch arch = Arch::cpu;
  int units = 0;             ///< multiprocessors or compute units
  size_t memory = 0;         ///< bytes
  size_t l2 = 0;             ///< bytes of the last cache that a kernel's working set can stay in
  size_t shared_memory = 0;  ///< bytes that one block (workgroup) may have
  /// The vendor's figures, which '% of the limit' refers to: bytes per second of its memory, and
  /// dense floating-point operations per second by Peak. 0: not known for this device.
  double bandwidth = 0;
  std::array<double, kPeaks> peak = {};
  bool fp8_fnuz = false;  ///< its matrix units take e4m3fnuz (gfx942); otherwise e4m3fn
  /// Mantissa bits, the leading one included, in which its matrix units sum fp8 products.
  int fp8_sum_bits = 24;
  bool keeps_time = true;  ///< false: a simulator, which counts instead
};

class Device;

/// Where an operation runs, and after what: kernels of one stream run in the order of their launch.
struct Stream {
  Device* device = nullptr;  ///< null: the CPU, in the calling thread
  void* native = nullptr;    ///< cudaStream_t or hipStream_t; null: the device's default stream
};

/// Memory of a device, freed with this object. `data` is an address there, not to be read here.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(void* data, size_t size, std::function<void(void*)> free)
      : data_(data), size_(size), free_(std::move(free)) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(free_, other.free_);
    return *this;
  }
  ~DeviceMemory() {
    if (data_ != nullptr) {
      free_(data_);
    }
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
  std::function<void(void*)> free_;
};

/// What a simulated run did, counted, and the bound that follows: the largest of bytes over
/// bandwidth, matrix cycles and so on. A bound from counts is never a time.
struct Counters {
  struct Entry {
    std::string name;
    double value = 0;
  };
  std::vector<Entry> entries;
  double bound = 0;      ///< seconds
  std::string bound_by;  ///< which count: "bytes from HBM"
};

/// All members are for one thread at a time. Errors are of kind device.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual const DeviceInfo& info() const = 0;
  /// The stream that this object's own work goes to.
  virtual Stream stream() = 0;
  /// Makes it the calling thread's device, which launches on its streams need: another thread may
  /// have opened it, or this one used another since. The members below do so by themselves.
  virtual Status use() { return {}; }

  /// Aligned to 256 bytes or more; the contents are anything.
  virtual Result<DeviceMemory> allocate(size_t bytes) = 0;
  /// Copies in the order of stream(); the host's memory may be reused at once.
  virtual Status upload(void* to, const void* from, size_t bytes) = 0;
  virtual Status download(void* to, const void* from, size_t bytes) = 0;
  /// Between places of this device's memory, in the order of stream().
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  /// Waits for all work. An error of a kernel (a bad address, a finding of the simulator) comes out
  /// here at the latest.
  virtual Status synchronize() = 0;

  using Work = std::function<Status(Stream)>;
  /// Seconds of each of `runs` runs of `work`, between two events around its replay as a graph,
  /// after writes that leave nothing of it in the caches. `work` is recorded once and must not
  /// allocate or synchronise. Only where info().keeps_time.
  virtual Result<std::vector<double>> time(const Work& work, int runs) = 0;
  /// What one run counts. Only where not info().keeps_time.
  virtual Result<Counters> count(const Work& work) = 0;
};

/// "cuda", "cuda:1", "hip", "sim:gfx942*8:3". Errors: usage (no such name), device (it is not here,
/// or this build leaves it out; the sentence says which).
Result<std::unique_ptr<Device>> open_device(std::string_view id);

/// One line of `weft devices`: a device that can be opened, or why none of its kind can.
struct DeviceListing {
  std::string kind;  ///< "cuda", "hip", "sim"
  DeviceInfo info;   ///< when `missing` is empty
  std::string missing;
};
std::vector<DeviceListing> list_devices();

}  // namespace weft
