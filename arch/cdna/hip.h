// The road to an AMD GPU: HIP's module API, from libamdhip64.so opened at run time or from the
// simulator, which answers the same functions. This is what the operations' host code launches
// through; everybody else sees a Device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "arch/cdna/hip_abi.h"
#include "arch/cdna/target.h"
#include "arch/device.h"
#include "base/result.h"

namespace weft::cdna {

/// What a simulator gives besides HIP's functions.
struct Simulator {
  const hip::HipApi* api = nullptr;
  /// The HIP number of a GPU of a node, which is made when it is first asked for.
  Result<int> (*ordinal)(const Node& node) = nullptr;
  /// What the last launch in this thread did wrong, as sentences; empty: nothing.
  std::string (*findings)() = nullptr;
  /// What the last launch in this thread counted.
  Counters (*counters)() = nullptr;
};

/// Makes `sim:` devices openable: the simulator lies above this room and is handed down once,
/// before the first device is opened.
void set_simulator(const Simulator& simulator);
/// Instead: why it cannot run here, for those who ask for a `sim:` device. Outlives them.
void refuse_simulator(std::string_view why);

/// libamdhip64.so's functions, opened on the first call. Error (device): it is not there, or lacks
/// a function.
Result<const hip::HipApi*> hip_library();

/// Which kernel, and how many threads run it.
struct Launch {
  std::string_view operation;  ///< whose code object has it (arch/cdna/embedded.h)
  std::string_view kernel;
  uint32_t groups_x = 1;  ///< workgroups
  uint32_t groups_y = 1;
  uint32_t threads = 0;  ///< of a workgroup
};

/// A GPU behind HIP's functions.
class HipDevice final : public Device {
 public:
  /// Device `ordinal` of a HIP implementation; `simulator` where it is one.
  static Result<std::unique_ptr<HipDevice>> open(const hip::HipApi& api, int ordinal,
                                                 std::string id, const Simulator* simulator);
  ~HipDevice() override;

  const DeviceInfo& info() const override { return info_; }
  Stream stream() override { return {this, stream_}; }
  Result<DeviceMemory> allocate(size_t bytes) override;
  Status upload(void* to, const void* from, size_t bytes) override;
  Status download(void* to, const void* from, size_t bytes) override;
  Status copy(void* to, const void* from, size_t bytes) override;
  Status synchronize() override;
  /// Between two events around a launch: HIP's graphs are not used.
  Result<std::vector<double>> time(const Work& work, int runs) override;
  Result<Counters> count(const Work& work) override;

  /// Memory of the host that kernels read and write in place, at the same address.
  Result<DeviceMemory> allocate_host(size_t bytes);
  /// Zeros, in the order of stream().
  Status clear(void* to, size_t bytes);
  /// Copies to the device while a kernel runs in stream().
  Status upload_beside(void* to, const void* from, size_t bytes);

  Target target() const { return target_; }
  /// Starts a kernel whose one parameter is a struct by value. Errors (device): this build has no
  /// such kernel for the target, or the launch failed; of a simulator, what it found wrong.
  template <class Params>
  Status launch(const Launch& launch, const Params& params, void* stream) {
    return launch_bytes(launch, &params, sizeof(params), stream);
  }
  /// The same, but never waits for the kernel: is_busy() is to be asked until it has ended.
  template <class Params>
  Status start(const Launch& launch, const Params& params, void* stream) {
    return start_bytes(launch, &params, sizeof(params), stream);
  }
  /// Whether a stream's work goes on. Errors (device): it failed; of a simulator, what the last
  /// kernel did wrong.
  Result<bool> is_busy(void* stream);

 private:
  HipDevice(const hip::HipApi& api, int ordinal, const Simulator* simulator)
      : api_(api), ordinal_(ordinal), simulator_(simulator) {}
  Status launch_bytes(const Launch& launch, const void* params, size_t bytes, void* stream);
  Status start_bytes(const Launch& launch, const void* params, size_t bytes, void* stream);
  /// What a launch, or waiting for it, returned.
  Status ended(hip::hipError_t error, std::string_view what) const;
  Result<hip::hipFunction_t> function(std::string_view operation, std::string_view kernel);
  /// What a call of HIP returned, as an error that says which call.
  Status checked(hip::hipError_t error, std::string_view call) const;

  const hip::HipApi& api_;
  const int ordinal_;
  const Simulator* const simulator_;
  Target target_ = Target::gfx942;
  DeviceInfo info_;
  hip::hipStream_t stream_ = nullptr;
  hip::hipStream_t beside_ = nullptr;                             // made when it is first asked for
  std::map<std::string, hip::hipModule_t, std::less<>> modules_;  // by operation
  std::map<std::pair<std::string, std::string>, hip::hipFunction_t> functions_;
  Counters* counting_ = nullptr;  // of count(), while it runs
};

/// A device as open_device() (arch/cdna/device.h) opens it.
Result<std::unique_ptr<HipDevice>> open_hip_device(std::string_view id);

/// The HipDevice of a stream that an operation was given for Arch::cdna.
inline HipDevice& hip_device(Stream stream) { return *static_cast<HipDevice*>(stream.device); }

}  // namespace weft::cdna
