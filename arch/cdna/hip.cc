#include "arch/cdna/hip.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "arch/cdna/embedded.h"

namespace weft::cdna {

using hip::HipApi;
using hip::hipError_t;
using hip::hipSuccess;

namespace {

// Written between timed runs: more than the 256 MiB of the last-level cache.
constexpr size_t kFlushBytes = size_t{512} << 20;

/// Looks all functions up in an opened library. Error (device): which is missing.
Result<const HipApi*> look_up(void* library, std::string_view path) {
  static HipApi api;
#define WEFT_HIP_LOOK_UP(result, name, parameters)                                      \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, #name));               \
  if (api.name == nullptr) {                                                            \
    return device_error(fmt::format(                                                    \
        "{} has no function {}: a ROCm of version 6 or later is needed", path, #name)); \
  }
  WEFT_HIP_FUNCTIONS(WEFT_HIP_LOOK_UP)
#undef WEFT_HIP_LOOK_UP
  return &api;
}

Result<const HipApi*> open_library() {
  for (const int loaded :
       {RTLD_NOLOAD, 0}) {  // the one that the process has already (PyTorch's) before others
    for (const char* path : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}) {
      if (void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | loaded)) {
        return look_up(library, path);
      }
    }
  }
  return device_error(fmt::format(
      "no AMD GPU can be used: ROCm's libamdhip64.so cannot be opened ({})", dlerror()));
}

}  // namespace

Result<const HipApi*> hip_library() {
  static const Result<const HipApi*> kLibrary = open_library();
  return kLibrary;
}

Status HipDevice::checked(hipError_t error, std::string_view call) const {
  if (error == hipSuccess) {
    return {};
  }
  return device_error(
      fmt::format("{}: {} failed: {}", info_.id, call, api_.hipGetErrorString(error)));
}

Result<std::unique_ptr<HipDevice>> HipDevice::open(const HipApi& api, int ordinal, std::string id,
                                                   const Simulator* simulator) {
  std::unique_ptr<HipDevice> device(new HipDevice(api, ordinal, simulator));
  device->info_.id = std::move(id);
  DeviceInfo& info = device->info_;
  WEFT_TRY(device->checked(api.hipInit(0), "hipInit"));
  WEFT_TRY(device->checked(api.hipSetDevice(ordinal), "hipSetDevice"));
  hip::hipDeviceProp_t properties{};
  WEFT_TRY(device->checked(api.hipGetDevicePropertiesR0600(&properties, ordinal),
                           "hipGetDeviceProperties"));
  const std::string_view arch(properties.gcnArchName);  // "gfx942:sramecc+:xnack-"
  const auto target = target_named(arch.substr(0, arch.find(':')));
  if (!target) {
    return device_error(
        fmt::format("{} is a {}, for which there are no kernels: Weft runs on gfx942 "
                    "(MI300X) and gfx950 (MI355X)",
                    info.id, arch));
  }
  const Limits limits = limits_of(*target);
  device->target_ = *target;
  info.name = properties.name;
  info.target = name_of(*target);
  info.arch = Arch::cdna;
  info.units = properties.multiProcessorCount;
  info.memory = properties.totalGlobalMem;
  info.l2 = static_cast<size_t>(limits.last_cache_bytes);
  info.shared_memory = static_cast<size_t>(limits.lds_bytes);
  info.bandwidth = limits.memory_bandwidth;
  info.peak = {limits.f32_flops, limits.bf16_flops, limits.fp8_flops};
  info.fp8_fnuz = *target == Target::gfx942;
  info.keeps_time = simulator == nullptr;
  WEFT_TRY(device->checked(api.hipStreamCreate(&device->stream_), "hipStreamCreate"));
  return device;
}

HipDevice::~HipDevice() {
  if (stream_ != nullptr) {
    api_.hipStreamDestroy(stream_);
  }
  if (beside_ != nullptr) {
    api_.hipStreamDestroy(beside_);
  }
  for (const auto& [operation, module] : modules_) {
    api_.hipModuleUnload(module);
  }
}

Result<DeviceMemory> HipDevice::allocate(size_t bytes) {
  void* data = nullptr;
  WEFT_TRY(checked(api_.hipSetDevice(ordinal_), "hipSetDevice"));
  WEFT_TRY(checked(api_.hipMalloc(&data, std::max<size_t>(bytes, 1)),
                   fmt::format("hipMalloc of {} bytes", bytes)));
  return DeviceMemory(data, bytes, [&api = api_](void* pointer) { api.hipFree(pointer); });
}

Status HipDevice::upload(void* to, const void* from, size_t bytes) {
  WEFT_TRY(checked(api_.hipMemcpyAsync(to, from, bytes, hip::hipMemcpyHostToDevice, stream_),
                   "hipMemcpyAsync to the device"));
  return checked(api_.hipStreamSynchronize(stream_), "hipStreamSynchronize");
}

Status HipDevice::download(void* to, const void* from, size_t bytes) {
  WEFT_TRY(checked(api_.hipMemcpyAsync(to, from, bytes, hip::hipMemcpyDeviceToHost, stream_),
                   "hipMemcpyAsync from the device"));
  return checked(api_.hipStreamSynchronize(stream_), "hipStreamSynchronize");
}

Status HipDevice::copy(void* to, const void* from, size_t bytes) {
  return checked(api_.hipMemcpyAsync(to, from, bytes, hip::hipMemcpyDeviceToDevice, stream_),
                 "hipMemcpyAsync within the device");
}

Result<DeviceMemory> HipDevice::allocate_host(size_t bytes) {
  void* data = nullptr;
  WEFT_TRY(checked(api_.hipSetDevice(ordinal_), "hipSetDevice"));
  WEFT_TRY(checked(api_.hipHostMalloc(&data, bytes, 0), "hipHostMalloc"));
  return DeviceMemory(data, bytes, [&api = api_](void* pointer) { api.hipHostFree(pointer); });
}

Status HipDevice::clear(void* to, size_t bytes) {
  return checked(api_.hipMemsetAsync(to, 0, bytes, stream_), "hipMemsetAsync");
}

Status HipDevice::upload_beside(void* to, const void* from, size_t bytes) {
  if (beside_ == nullptr) {
    WEFT_TRY(checked(api_.hipStreamCreateWithFlags(&beside_, hip::hipStreamNonBlocking),
                     "hipStreamCreate"));
  }
  WEFT_TRY(checked(api_.hipMemcpyAsync(to, from, bytes, hip::hipMemcpyHostToDevice, beside_),
                   "hipMemcpyAsync to the device"));
  return checked(api_.hipStreamSynchronize(beside_), "hipStreamSynchronize");
}

Status HipDevice::synchronize() {
  WEFT_TRY(checked(api_.hipSetDevice(ordinal_), "hipSetDevice"));
  return checked(api_.hipDeviceSynchronize(), "hipDeviceSynchronize");
}

Result<std::vector<double>> HipDevice::time(const Work& work, int runs) {
  WEFT_ASSIGN(const DeviceMemory flush, allocate(kFlushBytes));
  struct Events {
    const HipApi& api;
    std::array<hip::hipEvent_t, 2> events{};
    ~Events() {
      for (hip::hipEvent_t event : events) {
        if (event != nullptr) {
          api.hipEventDestroy(event);
        }
      }
    }
  } events{.api = api_};
  for (hip::hipEvent_t& event : events.events) {
    WEFT_TRY(checked(api_.hipEventCreate(&event), "hipEventCreate"));
  }
  const auto [start, stop] = events.events;
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    WEFT_TRY(
        checked(api_.hipMemsetAsync(flush.data(), run, kFlushBytes, stream_), "hipMemsetAsync"));
    WEFT_TRY(checked(api_.hipEventRecord(start, stream_), "hipEventRecord"));
    WEFT_TRY(work(stream()));
    WEFT_TRY(checked(api_.hipEventRecord(stop, stream_), "hipEventRecord"));
    WEFT_TRY(checked(api_.hipEventSynchronize(stop), "hipEventSynchronize"));
    float milliseconds = 0;
    WEFT_TRY(checked(api_.hipEventElapsedTime(&milliseconds, start, stop), "hipEventElapsedTime"));
    seconds.push_back(milliseconds * 1e-3);
  }
  return seconds;
}

Result<Counters> HipDevice::count(const Work& work) {
  if (simulator_ == nullptr) {
    return device_error(fmt::format("{} keeps time and counts nothing", info_.id));
  }
  Counters counters;
  counting_ = &counters;
  const Status status = work(stream());
  counting_ = nullptr;
  WEFT_TRY(status);
  return counters;
}

Result<hip::hipFunction_t> HipDevice::function(std::string_view operation,
                                               std::string_view kernel) {
  const std::pair<std::string, std::string> key{operation, kernel};
  if (const auto found = functions_.find(key); found != functions_.end()) {
    return found->second;
  }
  auto module = modules_.find(operation);
  if (module == modules_.end()) {
    const EmbeddedCode* code = embedded_code(operation, target_);
    if (code == nullptr) {
      return device_error(fmt::format(
          "this build has no {} code of {}: it was configured without clang-22 and lld-22",
          name_of(target_), operation));
    }
    hip::hipModule_t loaded = nullptr;
    WEFT_TRY(checked(api_.hipModuleLoadData(&loaded, code->bytes.data()),
                     fmt::format("loading the code of {}", operation)));
    module = modules_.emplace(operation, loaded).first;
  }
  hip::hipFunction_t function = nullptr;
  WEFT_TRY(checked(api_.hipModuleGetFunction(&function, module->second, key.second.c_str()),
                   fmt::format("looking up the kernel {}", kernel)));
  functions_.emplace(key, function);
  return function;
}

Status HipDevice::start_bytes(const Launch& launch, const void* params, size_t bytes,
                              void* stream) {
  WEFT_TRY(checked(api_.hipSetDevice(ordinal_), "hipSetDevice"));
  WEFT_ASSIGN(const hip::hipFunction_t kernel, function(launch.operation, launch.kernel));
  void* extra[] = {hip::HIP_LAUNCH_PARAM_BUFFER_POINTER, const_cast<void*>(params),
                   hip::HIP_LAUNCH_PARAM_BUFFER_SIZE, &bytes, hip::HIP_LAUNCH_PARAM_END};
  return ended(
      api_.hipModuleLaunchKernel(kernel, launch.groups_x, launch.groups_y, 1, launch.threads, 1, 1,
                                 0, static_cast<hip::hipStream_t>(stream), nullptr, extra),
      launch.kernel);
}

Status HipDevice::ended(hipError_t error, std::string_view what) const {
  if (error != hipSuccess && simulator_ != nullptr) {
    if (std::string findings = simulator_->findings(); !findings.empty()) {
      return device_error(std::move(findings));
    }
  }
  return checked(error, fmt::format("the launch of {}", what));
}

Result<bool> HipDevice::is_busy(void* stream) {
  const auto native = static_cast<hip::hipStream_t>(stream);
  hipError_t error = api_.hipStreamQuery(native);
  if (error == hip::hipErrorNotReady) {
    return true;
  }
  if (error == hipSuccess) {
    error = api_.hipStreamSynchronize(native);
  }
  WEFT_TRY(ended(error, "a kernel"));
  return false;
}

Status HipDevice::launch_bytes(const Launch& launch, const void* params, size_t bytes,
                               void* stream) {
  WEFT_TRY(start_bytes(launch, params, bytes, stream));
  if (simulator_ == nullptr) {
    return {};
  }
  // Its findings and counts are this launch's.
  WEFT_TRY(ended(api_.hipStreamSynchronize(static_cast<hip::hipStream_t>(stream)), launch.kernel));
  if (counting_ != nullptr) {
    Counters counters = simulator_->counters();
    if (counting_->entries.empty()) {
      *counting_ = std::move(counters);
    } else {  // a further kernel of the same work: it runs after those before it
      for (size_t i = 0; i < counting_->entries.size() && i < counters.entries.size(); ++i) {
        counting_->entries[i].value += counters.entries[i].value;
      }
      counting_->bound += counters.bound;
      counting_->bound_by = "the kernels' bounds together";
    }
  }
  return {};
}

}  // namespace weft::cdna
