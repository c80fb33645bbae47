#include "sim/hip.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sim/device.h"
#include "sim/memory.h"

// HIP's handles, which a program only ever passes back.
namespace weft::hip {
struct ihipStream_t {};
struct ihipEvent_t {
  std::chrono::steady_clock::time_point at;
  bool recorded = false;
};
struct ihipModule_t {
  int device = 0;
  std::shared_ptr<sim::Module> module;
};
struct ihipModuleSymbol_t {
  ihipModule_t* module = nullptr;
  const sim::Kernel* kernel = nullptr;
};
}  // namespace weft::hip

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: this file is HIP's other side

constexpr int kDevices = 2;
constexpr Target kTargets[kDevices] = {Target::gfx942, Target::gfx950};
constexpr int kVersion = 60'200'000;  // HIP 6.2: the interface of arch/cdna/hip_abi.h

/// Everything behind the C functions. Handles are known addresses: a wrong one is found, not
/// followed.
struct Runtime {
  std::mutex mutex;
  std::array<std::unique_ptr<Device>, kDevices> devices;
  std::unordered_map<void*, int> memory;  ///< device of each allocation
  std::unordered_map<hipModule_t, std::unique_ptr<ihipModule_t>> modules;
  std::unordered_map<hipFunction_t, std::unique_ptr<ihipModuleSymbol_t>> functions;
  std::unordered_map<hipStream_t, std::unique_ptr<ihipStream_t>> streams;
  std::unordered_map<hipEvent_t, std::unique_ptr<ihipEvent_t>> events;
  std::atomic<bool> sanitize{true};

  Runtime() {
    for (int k = 0; k < kDevices; ++k) {
      devices[static_cast<size_t>(k)] = std::make_unique<Device>(kTargets[k]);
    }
    const char* text = std::getenv("WEFT_SIM_SANITIZE");
    sanitize = text == nullptr || std::string_view(text) != "0";
  }
};
Runtime& runtime() {
  // Never destroyed: a program may free its memory while it exits.
  static auto* const kRuntime = new Runtime();
  return *kRuntime;
}

thread_local int current_device = 0;
thread_local hipError_t last_error = hipSuccess;
thread_local LaunchReport latest;
/// libweft-amdhip64.so says what went wrong on stderr, as a driver does.
bool findings_to_stderr = false;

hipError_t result(hipError_t error) {
  if (error != hipSuccess) {
    last_error = error;
  }
  return error;
}
/// What kept a load or a launch from beginning.
void refuse(std::string_view kernel, std::string message) {
  latest = {};
  latest.kernel = kernel;
  Finding finding;
  finding.kernel = kernel;
  finding.message = std::move(message);
  latest.findings.push_back(std::move(finding));
}
Device& device() { return *runtime().devices[static_cast<size_t>(current_device)]; }
bool known_device(int device) { return device >= 0 && device < kDevices; }

// NOLINTBEGIN(readability-identifier-naming): HIP's names
// Under C linkage, so that libweft-amdhip64.so exports them as they are.
#define WEFT_HIP extern "C" __attribute__((visibility("default")))

WEFT_HIP hipError_t hipInit(unsigned flags) {
  return result(flags == 0 ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipDriverGetVersion(int* version) {
  if (version == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *version = kVersion;
  return hipSuccess;
}
WEFT_HIP hipError_t hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }
WEFT_HIP hipError_t hipGetDeviceCount(int* count) {
  if (count == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *count = kDevices;
  return hipSuccess;
}
WEFT_HIP hipError_t hipGetDevice(int* device_) {
  if (device_ == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *device_ = current_device;
  return hipSuccess;
}
WEFT_HIP hipError_t hipSetDevice(int device_) {
  if (!known_device(device_)) {
    return result(hipErrorInvalidDevice);
  }
  current_device = device_;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGet(hipDevice_t* device_, int ordinal) {
  if (device_ == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(ordinal)) {
    return result(hipErrorInvalidDevice);
  }
  *device_ = ordinal;
  return hipSuccess;
}

const char* product_name(int device_) {
  return kTargets[device_] == Target::gfx942 ? "Weft simulator of AMD Instinct MI300X"
                                             : "Weft simulator of AMD Instinct MI355X";
}
void copy_text(char* to, size_t bytes, std::string_view text) {
  const size_t length = std::min(text.size(), bytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

WEFT_HIP hipError_t hipDeviceGetName(char* name, int bytes, hipDevice_t device_) {
  if (name == nullptr || bytes <= 0) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device_)) {
    return result(hipErrorInvalidDevice);
  }
  copy_text(name, static_cast<size_t>(bytes), product_name(device_));
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device_) {
  if (bytes == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device_)) {
    return result(hipErrorInvalidDevice);
  }
  *bytes = runtime().devices[static_cast<size_t>(device_)]->memory().capacity();
  return hipSuccess;
}

WEFT_HIP hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device_) {
  if (value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device_)) {
    return result(hipErrorInvalidDevice);
  }
  const cdna::Limits limits = cdna::limits_of(kTargets[device_]);
  switch (attribute) {
    case hipDeviceAttributeClockRate:
      *value = static_cast<int>(limits.clock / 1000);
      break;
    case hipDeviceAttributeL2CacheSize:
      *value = static_cast<int>(limits.l2_bytes);
      break;
    case hipDeviceAttributeComputeCapabilityMajor:
      *value = 9;
      break;
    case hipDeviceAttributeComputeCapabilityMinor:
      *value = kTargets[device_] == Target::gfx942 ? 4 : 5;
      break;
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
    case hipDeviceAttributeMaxThreadsPerBlock:
      *value = cdna::kMaxWorkgroupThreads;
      break;
    case hipDeviceAttributeMaxGridDimX:
      *value = 0x7fffffff;
      break;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
      *value = 65535;
      break;
    case hipDeviceAttributeMaxThreadsPerMultiProcessor:
      *value = cdna::kWavesPerSimd * cdna::kSimds * cdna::kWaveLanes;
      break;
    case hipDeviceAttributeMemoryBusWidth:
      *value = 8192;
      break;
    case hipDeviceAttributeMemoryClockRate:
      *value = static_cast<int>(limits.memory_bandwidth / (8192 / 8) / 2 / 1000);
      break;
    case hipDeviceAttributeMultiprocessorCount:
      *value = limits.compute_units;
      break;
    case hipDeviceAttributeMaxRegistersPerBlock:
      *value = cdna::kVectorRegisters * cdna::kWaveLanes * cdna::kSimds;
      break;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(limits.lds_bytes);
      break;
    case hipDeviceAttributeWarpSize:
      *value = cdna::kWaveLanes;
      break;
    default:
      return result(hipErrorInvalidValue);
  }
  return hipSuccess;
}

WEFT_HIP hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* p, int device_) {
  if (p == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device_)) {
    return result(hipErrorInvalidDevice);
  }
  const Target target = kTargets[device_];
  const cdna::Limits limits = cdna::limits_of(target);
  const auto lds = static_cast<size_t>(limits.lds_bytes);
  std::memset(p, 0, sizeof *p);
  copy_text(p->name, sizeof p->name, product_name(device_));
  p->totalGlobalMem = runtime().devices[static_cast<size_t>(device_)]->memory().capacity();
  p->sharedMemPerBlock = lds;
  p->regsPerBlock = cdna::kVectorRegisters * cdna::kWaveLanes * cdna::kSimds;
  p->warpSize = cdna::kWaveLanes;
  p->memPitch = 0x7fffffff;
  p->maxThreadsPerBlock = cdna::kMaxWorkgroupThreads;
  for (int& most : p->maxThreadsDim) {
    most = cdna::kMaxWorkgroupThreads;
  }
  p->maxGridSize[0] = 0x7fffffff;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->clockRate = static_cast<int>(limits.clock / 1000);
  p->totalConstMem = 0x7fffffff;
  p->major = 9;
  p->minor = target == Target::gfx942 ? 4 : 5;
  p->multiProcessorCount = limits.compute_units;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = 8192;
  p->memoryClockRate = static_cast<int>(limits.memory_bandwidth / (8192 / 8) / 2 / 1000);
  p->l2CacheSize = static_cast<int>(limits.l2_bytes);
  p->maxThreadsPerMultiProcessor = cdna::kWavesPerSimd * cdna::kSimds * cdna::kWaveLanes;
  p->sharedMemPerMultiprocessor = lds;
  p->regsPerMultiprocessor = cdna::kVectorRegisters * cdna::kWaveLanes * cdna::kSimds;
  p->sharedMemPerBlockOptin = lds;
  copy_text(p->gcnArchName, sizeof p->gcnArchName,
            target == Target::gfx942 ? "gfx942:sramecc+:xnack-" : "gfx950:sramecc+:xnack-");
  p->maxSharedMemoryPerMultiProcessor = lds;
  p->clockInstructionRate = 100'000;
  p->arch = 0x1ffff;
  return hipSuccess;
}

WEFT_HIP hipError_t hipDeviceSynchronize() { return hipSuccess; }
WEFT_HIP hipError_t hipGetLastError() {
  const hipError_t error = last_error;
  last_error = hipSuccess;
  return error;
}
WEFT_HIP hipError_t hipPeekAtLastError() { return last_error; }

struct ErrorText {
  hipError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {hipSuccess, "hipSuccess", "no error"},
    {hipErrorInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {hipErrorOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {hipErrorNotInitialized, "hipErrorNotInitialized", "initialization error"},
    {hipErrorInvalidConfiguration, "hipErrorInvalidConfiguration",
     "invalid configuration argument"},
    {hipErrorInvalidDevicePointer, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {hipErrorInvalidMemcpyDirection, "hipErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {hipErrorInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu",
     "no kernel image is available for execution on the device"},
    {hipErrorFileNotFound, "hipErrorFileNotFound", "file not found"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {hipErrorNotFound, "hipErrorNotFound", "named symbol not found"},
    {hipErrorNotReady, "hipErrorNotReady", "device not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources",
     "out of resources to launch the kernel"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {hipErrorNotSupported, "hipErrorNotSupported", "operation not supported"},
    {hipErrorUnknown, "hipErrorUnknown", "unknown error"},
};
const ErrorText& text_of(hipError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? *(std::end(kErrors) - 1) : *found;
}
WEFT_HIP const char* hipGetErrorName(hipError_t error) { return text_of(error).name; }
WEFT_HIP const char* hipGetErrorString(hipError_t error) { return text_of(error).text; }

WEFT_HIP hipError_t hipMalloc(void** pointer, size_t bytes) {
  if (pointer == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *pointer = nullptr;
  if (bytes == 0) {
    return hipSuccess;
  }
  const Result<uint64_t> address = device().allocate(bytes);
  if (!address.ok()) {
    return result(hipErrorOutOfMemory);
  }
  *pointer = reinterpret_cast<void*>(address.value());
  const std::lock_guard lock(runtime().mutex);
  runtime().memory[*pointer] = current_device;
  return hipSuccess;
}
WEFT_HIP hipError_t hipFree(void* pointer) {
  if (pointer == nullptr) {
    return hipSuccess;
  }
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().memory.find(pointer);
  if (found == runtime().memory.end()) {
    return result(hipErrorInvalidValue);
  }
  const Status freed = runtime().devices[static_cast<size_t>(found->second)]->free(
      reinterpret_cast<uint64_t>(pointer));
  runtime().memory.erase(found);
  return result(freed.ok() ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned) {
  return hipMalloc(pointer, bytes);
}
WEFT_HIP hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }
WEFT_HIP hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *total = device().memory().capacity();
  *free = *total - device().memory().used();
  return hipSuccess;
}

/// Whether all bytes lie in one allocation of any device.
bool on_device(const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  for (const auto& each : runtime().devices) {
    Memory::Range range;
    if (each->memory().find(address, range)) {
      return bytes <= range.end - address;
    }
  }
  return false;
}
hipError_t copy(void* to, const void* from, size_t bytes, bool to_device, bool from_device) {
  if (bytes == 0) {
    return hipSuccess;
  }
  if (to == nullptr || from == nullptr || (to_device && !on_device(to, bytes)) ||
      (from_device && !on_device(from, bytes))) {
    return result(hipErrorInvalidValue);
  }
  std::memmove(to, from, bytes);
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  switch (kind) {
    case hipMemcpyHostToHost:
    case hipMemcpyDefault:
      return copy(to, from, bytes, false, false);
    case hipMemcpyHostToDevice:
      return copy(to, from, bytes, true, false);
    case hipMemcpyDeviceToHost:
      return copy(to, from, bytes, false, true);
    case hipMemcpyDeviceToDevice:
      return copy(to, from, bytes, true, true);
  }
  return result(hipErrorInvalidMemcpyDirection);
}
WEFT_HIP hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                                   hipStream_t) {
  return hipMemcpy(to, from, bytes, kind);
}
WEFT_HIP hipError_t hipMemcpyHtoD(hipDeviceptr_t to, void* from, size_t bytes) {
  return copy(to, from, bytes, true, false);
}
WEFT_HIP hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  return copy(to, from, bytes, false, true);
}
WEFT_HIP hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  return copy(to, from, bytes, true, true);
}
WEFT_HIP hipError_t hipMemset(void* pointer, int value, size_t bytes) {
  if (bytes != 0 && !on_device(pointer, bytes)) {
    return result(hipErrorInvalidValue);
  }
  std::memset(pointer, value, bytes);
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, hipStream_t) {
  return hipMemset(pointer, value, bytes);
}
WEFT_HIP hipError_t hipMemsetD32(hipDeviceptr_t pointer, int value, size_t count) {
  if (count > SIZE_MAX / 4 || (count != 0 && !on_device(pointer, 4 * count))) {
    return result(hipErrorInvalidValue);
  }
  for (size_t k = 0; k < count; ++k) {
    std::memcpy(static_cast<char*>(pointer) + 4 * k, &value, 4);
  }
  return hipSuccess;
}

/// Keeps an object whose address is its handle.
template <class T>
T* keep(std::unordered_map<T*, std::unique_ptr<T>>& table, std::unique_ptr<T> object) {
  const std::lock_guard lock(runtime().mutex);
  T* handle = object.get();
  table[handle] = std::move(object);
  return handle;
}
template <class T>
bool known(const std::unordered_map<T*, std::unique_ptr<T>>& table, T* handle) {
  const std::lock_guard lock(runtime().mutex);
  return table.contains(handle);
}
template <class T>
hipError_t drop(std::unordered_map<T*, std::unique_ptr<T>>& table, T* handle) {
  const std::lock_guard lock(runtime().mutex);
  return result(table.erase(handle) == 1 ? hipSuccess : hipErrorInvalidHandle);
}
hipError_t check_stream(hipStream_t stream) {
  return result(stream == nullptr || known(runtime().streams, stream) ? hipSuccess
                                                                      : hipErrorInvalidHandle);
}
hipError_t check_event(hipEvent_t event) {
  return result(known(runtime().events, event) ? hipSuccess : hipErrorInvalidHandle);
}

WEFT_HIP hipError_t hipStreamCreate(hipStream_t* stream) {
  if (stream == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *stream = keep(runtime().streams, std::make_unique<ihipStream_t>());
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned) {
  return hipStreamCreate(stream);
}
WEFT_HIP hipError_t hipStreamDestroy(hipStream_t stream) { return drop(runtime().streams, stream); }
WEFT_HIP hipError_t hipStreamSynchronize(hipStream_t stream) { return check_stream(stream); }
WEFT_HIP hipError_t hipStreamQuery(hipStream_t stream) { return check_stream(stream); }
WEFT_HIP hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  const hipError_t error = check_stream(stream);
  return error == hipSuccess ? check_event(event) : error;
}
WEFT_HIP hipError_t hipEventCreate(hipEvent_t* event) {
  if (event == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *event = keep(runtime().events, std::make_unique<ihipEvent_t>());
  return hipSuccess;
}
WEFT_HIP hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned) {
  return hipEventCreate(event);
}
WEFT_HIP hipError_t hipEventDestroy(hipEvent_t event) { return drop(runtime().events, event); }
WEFT_HIP hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  const hipError_t error = check_stream(stream);
  if (error != hipSuccess) {
    return error;
  }
  if (!known(runtime().events, event)) {
    return result(hipErrorInvalidHandle);
  }
  event->at = std::chrono::steady_clock::now();
  event->recorded = true;
  return hipSuccess;
}
WEFT_HIP hipError_t hipEventSynchronize(hipEvent_t event) { return check_event(event); }
WEFT_HIP hipError_t hipEventQuery(hipEvent_t event) { return check_event(event); }
WEFT_HIP hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  if (milliseconds == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().events, start) || !known(runtime().events, stop) || !start->recorded ||
      !stop->recorded) {
    return result(hipErrorInvalidHandle);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(stop->at - start->at).count();
  return hipSuccess;
}

hipError_t load(hipModule_t* module, std::span<const std::byte> bytes) {
  Result<std::shared_ptr<Module>> loaded = device().load(bytes);
  if (!loaded.ok()) {
    latest = {};
    refuse("", loaded.error().message);
    return result(loaded.error().kind == ErrorKind::input ? hipErrorInvalidImage
                                                          : hipErrorOutOfMemory);
  }
  auto made = std::make_unique<ihipModule_t>();
  made->device = current_device;
  made->module = std::move(loaded).value();
  *module = keep(runtime().modules, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  if (module == nullptr || path == nullptr) {
    return result(hipErrorInvalidValue);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return result(hipErrorFileNotFound);
  }
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return load(module, std::as_bytes(std::span(bytes)));
}
/// HIP gives no size with an image; an ELF file's own header does.
size_t image_bytes(const void* image) {
  const auto* p = static_cast<const unsigned char*>(image);
  if (std::memcmp(p,
                  "\x7f"
                  "ELF",
                  4) != 0) {
    return 4;
  }
  uint64_t sections = 0;
  uint16_t each = 0;
  uint16_t count = 0;
  std::memcpy(&sections, p + 40, 8);
  std::memcpy(&each, p + 58, 2);
  std::memcpy(&count, p + 60, 2);
  // The section table is the last thing that the linker writes.
  constexpr uint64_t kMost = uint64_t{1} << 32;
  return sections < kMost ? sections + uint64_t{each} * count : 64;
}
WEFT_HIP hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  if (module == nullptr || image == nullptr) {
    return result(hipErrorInvalidValue);
  }
  return load(module, {static_cast<const std::byte*>(image), image_bytes(image)});
}
WEFT_HIP hipError_t hipModuleUnload(hipModule_t module) {
  {
    const std::lock_guard lock(runtime().mutex);
    std::erase_if(runtime().functions,
                  [&](const auto& entry) { return entry.second->module == module; });
  }
  return drop(runtime().modules, module);
}
WEFT_HIP hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                         const char* name) {
  if (function == nullptr || name == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().modules, module)) {
    return result(hipErrorInvalidHandle);
  }
  const Kernel* kernel = module->module->kernel(name);
  if (kernel == nullptr) {
    return result(hipErrorNotFound);
  }
  auto made = std::make_unique<ihipModuleSymbol_t>();
  made->module = module;
  made->kernel = kernel;
  *function = keep(runtime().functions, std::move(made));
  return hipSuccess;
}
WEFT_HIP hipError_t hipModuleGetGlobal(hipDeviceptr_t* pointer, size_t* bytes, hipModule_t module,
                                       const char* name) {
  if (name == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().modules, module)) {
    return result(hipErrorInvalidHandle);
  }
  const auto global = module->module->global(name);
  if (!global) {
    return result(hipErrorNotFound);
  }
  if (pointer != nullptr) {
    *pointer = reinterpret_cast<void*>(global->address);
  }
  if (bytes != nullptr) {
    *bytes = global->bytes;
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* function) {
  auto* handle = static_cast<hipFunction_t>(const_cast<void*>(function));
  if (attributes == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known(runtime().functions, handle)) {
    return result(hipErrorInvalidDeviceFunction);
  }
  const cdna::Kernel& kernel = *handle->kernel->info;
  const Target target = kTargets[handle->module->device];
  std::memset(attributes, 0, sizeof *attributes);
  attributes->binaryVersion = target == Target::gfx942 ? 94 : 95;
  attributes->localSizeBytes = kernel.scratch_bytes;
  attributes->maxDynamicSharedSizeBytes =
      static_cast<int>(cdna::limits_of(target).lds_bytes - kernel.lds_bytes);
  attributes->maxThreadsPerBlock = static_cast<int>(kernel.max_workgroup_threads);
  attributes->numRegs = static_cast<int>(kernel.vgprs);
  attributes->sharedSizeBytes = kernel.lds_bytes;
  return hipSuccess;
}
WEFT_HIP hipError_t hipFuncGetAttribute(int* value, hipFunction_attribute attribute,
                                        hipFunction_t function) {
  hipFuncAttributes all;
  if (value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  const hipError_t error = hipFuncGetAttributes(&all, function);
  if (error != hipSuccess) {
    return error;
  }
  switch (attribute) {
    case HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = all.maxThreadsPerBlock;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(all.sharedSizeBytes);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = 0;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(all.localSizeBytes);
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_NUM_REGS:
      *value = all.numRegs;
      return hipSuccess;
    case HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = all.maxDynamicSharedSizeBytes;
      return hipSuccess;
  }
  return result(hipErrorInvalidValue);
}

/// The arguments of a launch, packed: given so in `extra`, or one pointer for each in `parameters`.
bool pack_arguments(const cdna::Kernel& kernel, void** parameters, void** extra,
                    std::vector<std::byte>& packed) {
  if (extra != nullptr) {
    const std::byte* from = nullptr;
    size_t bytes = 0;
    for (; *extra != HIP_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
        from = static_cast<const std::byte*>(extra[1]);
      } else if (*extra == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
        bytes = *static_cast<const size_t*>(extra[1]);
      } else {
        return false;
      }
    }
    if (from == nullptr && bytes != 0) {
      return false;
    }
    packed.assign(from, from + bytes);
    return true;
  }
  packed.assign(kernel.argument_bytes, std::byte{0});
  size_t index = 0;
  for (const cdna::KernelArgument& a : kernel.arguments) {
    if (a.kind.starts_with("hidden_")) {
      continue;
    }
    if (parameters == nullptr || parameters[index] == nullptr || a.offset > packed.size() ||
        packed.size() - a.offset < a.bytes) {
      return false;
    }
    std::memcpy(packed.data() + a.offset, parameters[index++], a.bytes);
  }
  return true;
}

WEFT_HIP hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                          unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared_bytes,
                                          hipStream_t stream, void** parameters, void** extra) {
  latest = {};
  if (!known(runtime().functions, function)) {
    return result(hipErrorInvalidHandle);
  }
  const hipError_t error = check_stream(stream);
  if (error != hipSuccess) {
    return error;
  }
  std::vector<std::byte> arguments;
  if (!pack_arguments(*function->kernel->info, parameters, extra, arguments)) {
    return result(hipErrorInvalidValue);
  }
  Device& on = *runtime().devices[static_cast<size_t>(function->module->device)];
  LaunchOptions options;
  options.sanitize = runtime().sanitize;
  Result<LaunchReport> done =
      on.launch(*function->kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                shared_bytes, arguments, options);
  if (!done.ok()) {
    refuse(function->kernel->info->name, done.error().message);
    return result(hipErrorInvalidConfiguration);
  }
  latest = std::move(done).value();
  if (findings_to_stderr && !latest.ok()) {
    std::fprintf(stderr, "%s\n", last_findings().c_str());
  }
  return result(latest.ok() ? hipSuccess : hipErrorLaunchFailure);
}

// NOLINTEND(readability-identifier-naming)

}  // namespace

const hip::HipApi& hip_api() {
  static const hip::HipApi kApi = {
#define WEFT_HIP_ANSWER(result, name, parameters) .name = &name,
      WEFT_HIP_FUNCTIONS(WEFT_HIP_ANSWER)
#undef WEFT_HIP_ANSWER
  };
  return kApi;
}

const LaunchReport& last_launch() { return latest; }

std::string last_findings() {
  std::string out;
  for (const Finding& finding : latest.findings) {
    // A launch that was refused has a message and nothing else.
    out += (out.empty() ? "" : "\n") +
           (finding.instruction.empty() ? finding.message : finding.text());
  }
  return out;
}

void set_findings_to_stderr(bool on) { findings_to_stderr = on; }

void set_sanitizer(bool on) { runtime().sanitize = on; }

}  // namespace weft::sim
