// Of the simulated HIP runtime: devices and what they have, peers, errors.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hip_runtime.h"

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

constexpr int kVersion = 60'200'000;  // HIP 6.2: the interface of arch/cdna/hip_abi.h

void copy_text(char* to, size_t bytes, std::string_view text) {
  const size_t length = std::min(text.size(), bytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = 0;
}

/// As devices are numbered on the bus: one each.
std::string bus_id(int device) {
  char text[32];
  std::snprintf(text, sizeof text, "0000:%02x:00.0", device + 1);
  return text;
}

/// All that is told of a device; its attributes are taken from here.
hipDeviceProp_t properties_of(int device) {
  const Target target = gpu(device).device->target();
  const cdna::Limits limits = cdna::limits_of(target);
  const auto lds = static_cast<size_t>(limits.lds_bytes);
  constexpr int kRegisters = cdna::kVectorRegisters * cdna::kWaveLanes * cdna::kSimds;
  hipDeviceProp_t p;
  std::memset(&p, 0, sizeof p);
  copy_text(p.name, sizeof p.name,
            target == Target::gfx942 ? "Weft simulator of AMD Instinct MI300X"
                                     : "Weft simulator of AMD Instinct MI355X");
  std::snprintf(p.uuid, sizeof p.uuid, "weft-sim-%d", device);
  p.totalGlobalMem = runtime().memory->capacity(device);
  p.sharedMemPerBlock = lds;
  p.regsPerBlock = kRegisters;
  p.warpSize = cdna::kWaveLanes;
  p.memPitch = 0x7fffffff;
  p.maxThreadsPerBlock = cdna::kMaxWorkgroupThreads;
  std::fill(std::begin(p.maxThreadsDim), std::end(p.maxThreadsDim), cdna::kMaxWorkgroupThreads);
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.clockRate = static_cast<int>(limits.clock / 1000);
  p.totalConstMem = 0x7fffffff;
  p.major = 9;
  p.minor = target == Target::gfx942 ? 4 : 5;
  p.multiProcessorCount = limits.compute_units;
  p.canMapHostMemory = 1;
  p.concurrentKernels = 1;
  p.ECCEnabled = 1;
  p.pciBusID = device + 1;
  p.asyncEngineCount = 1;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 8192;
  p.memoryClockRate = static_cast<int>(limits.memory_bandwidth / (8192 / 8) / 2 / 1000);
  p.l2CacheSize = static_cast<int>(limits.l2_bytes);
  p.maxThreadsPerMultiProcessor = cdna::kWavesPerSimd * cdna::kSimds * cdna::kWaveLanes;
  p.sharedMemPerMultiprocessor = lds;
  p.regsPerMultiprocessor = kRegisters;
  p.managedMemory = 1;
  p.concurrentManagedAccess = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = lds;
  p.directManagedMemAccessFromHost = 1;
  p.maxBlocksPerMultiProcessor = cdna::kWavesPerSimd * cdna::kSimds;
  p.hostRegisterSupported = 1;
  copy_text(p.gcnArchName, sizeof p.gcnArchName,
            std::string(cdna::name_of(target)) + ":sramecc+:xnack-");
  p.maxSharedMemoryPerMultiProcessor = lds;
  p.clockInstructionRate = 100'000;
  p.arch = 0x1ffff;
  p.isLargeBar = 1;
  return p;
}

/// An attribute that is an int among the properties, and where.
struct IntAttribute {
  hipDeviceAttribute_t attribute;
  int hipDeviceProp_t::*field;
};
constexpr IntAttribute kIntAttributes[] = {
    {hipDeviceAttributeEccEnabled, &hipDeviceProp_t::ECCEnabled},
    {hipDeviceAttributeAsyncEngineCount, &hipDeviceProp_t::asyncEngineCount},
    {hipDeviceAttributeCanMapHostMemory, &hipDeviceProp_t::canMapHostMemory},
    {hipDeviceAttributeCanUseHostPointerForRegisteredMem,
     &hipDeviceProp_t::canUseHostPointerForRegisteredMem},
    {hipDeviceAttributeClockRate, &hipDeviceProp_t::clockRate},
    {hipDeviceAttributeComputeMode, &hipDeviceProp_t::computeMode},
    {hipDeviceAttributeComputePreemptionSupported, &hipDeviceProp_t::computePreemptionSupported},
    {hipDeviceAttributeConcurrentKernels, &hipDeviceProp_t::concurrentKernels},
    {hipDeviceAttributeConcurrentManagedAccess, &hipDeviceProp_t::concurrentManagedAccess},
    {hipDeviceAttributeCooperativeLaunch, &hipDeviceProp_t::cooperativeLaunch},
    {hipDeviceAttributeCooperativeMultiDeviceLaunch,
     &hipDeviceProp_t::cooperativeMultiDeviceLaunch},
    {hipDeviceAttributeDirectManagedMemAccessFromHost,
     &hipDeviceProp_t::directManagedMemAccessFromHost},
    {hipDeviceAttributeHostNativeAtomicSupported, &hipDeviceProp_t::hostNativeAtomicSupported},
    {hipDeviceAttributeIntegrated, &hipDeviceProp_t::integrated},
    {hipDeviceAttributeIsMultiGpuBoard, &hipDeviceProp_t::isMultiGpuBoard},
    {hipDeviceAttributeKernelExecTimeout, &hipDeviceProp_t::kernelExecTimeoutEnabled},
    {hipDeviceAttributeL2CacheSize, &hipDeviceProp_t::l2CacheSize},
    {hipDeviceAttributeComputeCapabilityMajor, &hipDeviceProp_t::major},
    {hipDeviceAttributeManagedMemory, &hipDeviceProp_t::managedMemory},
    {hipDeviceAttributeMaxBlocksPerMultiProcessor, &hipDeviceProp_t::maxBlocksPerMultiProcessor},
    {hipDeviceAttributeMaxThreadsPerBlock, &hipDeviceProp_t::maxThreadsPerBlock},
    {hipDeviceAttributeMaxThreadsPerMultiProcessor, &hipDeviceProp_t::maxThreadsPerMultiProcessor},
    {hipDeviceAttributeMemoryBusWidth, &hipDeviceProp_t::memoryBusWidth},
    {hipDeviceAttributeMemoryClockRate, &hipDeviceProp_t::memoryClockRate},
    {hipDeviceAttributeComputeCapabilityMinor, &hipDeviceProp_t::minor},
    {hipDeviceAttributeMultiprocessorCount, &hipDeviceProp_t::multiProcessorCount},
    {hipDeviceAttributePageableMemoryAccess, &hipDeviceProp_t::pageableMemoryAccess},
    {hipDeviceAttributePageableMemoryAccessUsesHostPageTables,
     &hipDeviceProp_t::pageableMemoryAccessUsesHostPageTables},
    {hipDeviceAttributePciBusId, &hipDeviceProp_t::pciBusID},
    {hipDeviceAttributePciDeviceId, &hipDeviceProp_t::pciDeviceID},
    {hipDeviceAttributePciDomainID, &hipDeviceProp_t::pciDomainID},
    {hipDeviceAttributeMaxRegistersPerBlock, &hipDeviceProp_t::regsPerBlock},
    {hipDeviceAttributeMaxRegistersPerMultiprocessor, &hipDeviceProp_t::regsPerMultiprocessor},
    {hipDeviceAttributeStreamPrioritiesSupported, &hipDeviceProp_t::streamPrioritiesSupported},
    {hipDeviceAttributeUnifiedAddressing, &hipDeviceProp_t::unifiedAddressing},
    {hipDeviceAttributeWarpSize, &hipDeviceProp_t::warpSize},
    {hipDeviceAttributeHostRegisterSupported, &hipDeviceProp_t::hostRegisterSupported},
    {hipDeviceAttributeClockInstructionRate, &hipDeviceProp_t::clockInstructionRate},
    {hipDeviceAttributeWallClockRate, &hipDeviceProp_t::clockInstructionRate},
    {hipDeviceAttributeIsLargeBar, &hipDeviceProp_t::isLargeBar},
    {hipDeviceAttributeAsicRevision, &hipDeviceProp_t::asicRevision},
    {hipDeviceAttributePhysicalMultiProcessorCount, &hipDeviceProp_t::multiProcessorCount},
};

/// What stands for a device in the functions of contexts: its number, and one.
hipCtx_t context_of(int device) { return reinterpret_cast<hipCtx_t>(intptr_t{device} + 1); }
int device_of(hipCtx_t context) {
  const auto number = reinterpret_cast<intptr_t>(context) - 1;
  return number >= 0 && number < kMaxDevices ? static_cast<int>(number) : -1;
}
/// The calling thread's devices from before hipCtxPushCurrent.
std::vector<int>& pushed_devices() {
  thread_local std::vector<int> pushed;
  return pushed;
}

hipError_t give_zero(int* value) {
  if (value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *value = 0;
  return hipSuccess;
}

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
    {hipErrorInvalidSymbol, "hipErrorInvalidSymbol", "invalid device symbol"},
    {hipErrorInvalidDevicePointer, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {hipErrorInvalidMemcpyDirection, "hipErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {hipErrorInvalidDeviceFunction, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {hipErrorNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {hipErrorInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {hipErrorInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {hipErrorNoBinaryForGpu, "hipErrorNoBinaryForGpu",
     "no kernel image is available for execution on the device"},
    {hipErrorPeerAccessUnsupported, "hipErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {hipErrorFileNotFound, "hipErrorFileNotFound", "file not found"},
    {hipErrorInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {hipErrorNotFound, "hipErrorNotFound", "named symbol not found"},
    {hipErrorNotReady, "hipErrorNotReady", "device not ready"},
    {hipErrorIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {hipErrorLaunchOutOfResources, "hipErrorLaunchOutOfResources",
     "out of resources to launch the kernel"},
    {hipErrorPeerAccessAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {hipErrorPeerAccessNotEnabled, "hipErrorPeerAccessNotEnabled",
     "peer access has not been enabled"},
    {hipErrorHostMemoryAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {hipErrorHostMemoryNotRegistered, "hipErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {hipErrorCooperativeLaunchTooLarge, "hipErrorCooperativeLaunchTooLarge",
     "too many blocks in cooperative launch"},
    {hipErrorLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {hipErrorNotSupported, "hipErrorNotSupported", "operation not supported"},
    {hipErrorInvalidContext, "hipErrorInvalidContext", "invalid device context"},
    {hipErrorIllegalState, "hipErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {hipErrorStreamCaptureUnsupported, "hipErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {hipErrorStreamCaptureInvalidated, "hipErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {hipErrorStreamCaptureMerge, "hipErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {hipErrorStreamCaptureUnmatched, "hipErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {hipErrorStreamCaptureUnjoined, "hipErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {hipErrorStreamCaptureIsolation, "hipErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {hipErrorStreamCaptureImplicit, "hipErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {hipErrorCapturedEvent, "hipErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {hipErrorStreamCaptureWrongThread, "hipErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {hipErrorGraphExecUpdateFailure, "hipErrorGraphExecUpdateFailure",
     "the graph update was not performed because it included changes which violated constraints "
     "specific to instantiated graph update"},
    {hipErrorUnknown, "hipErrorUnknown", "unknown error"},
};
const ErrorText& text_of(hipError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? *(std::end(kErrors) - 1) : *found;
}

}  // namespace

WEFT_HIP hipError_t hipInit(unsigned flags) {
  if (runtime().gpu_count == 0) {
    return result(hipErrorNoDevice);
  }
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
  *count = runtime().gpu_count;
  return result(*count == 0 ? hipErrorNoDevice : hipSuccess);
}
WEFT_HIP hipError_t hipGetDevice(int* device) {
  if (device == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *device = current_device();
  return hipSuccess;
}
WEFT_HIP hipError_t hipSetDevice(int device) {
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  current_device() = device;
  return hipSuccess;
}
WEFT_HIP hipError_t hipSetDeviceFlags(unsigned) { return hipSuccess; }
WEFT_HIP hipError_t hipGetDeviceFlags(unsigned* flags) {
  if (flags == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *flags = 0;
  return hipSuccess;
}
/// A device's context is always there.
WEFT_HIP hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned* flags, int* active) {
  if (!known_device(device) || flags == nullptr || active == nullptr) {
    return result(known_device(device) ? hipErrorInvalidValue : hipErrorInvalidDevice);
  }
  *flags = 0;
  *active = 1;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  if (device == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(ordinal)) {
    return result(hipErrorInvalidDevice);
  }
  *device = ordinal;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetName(char* name, int bytes, hipDevice_t device) {
  if (name == nullptr || bytes <= 0) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  copy_text(name, static_cast<size_t>(bytes), properties_of(device).name);
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetUuid(hipUUID* uuid, hipDevice_t device) {
  if (uuid == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  std::memcpy(uuid->bytes, properties_of(device).uuid, sizeof uuid->bytes);
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetPCIBusId(char* id, int bytes, int device) {
  if (id == nullptr || bytes <= 0) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  copy_text(id, static_cast<size_t>(bytes), bus_id(device));
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetByPCIBusId(int* device, const char* id) {
  if (device == nullptr || id == nullptr) {
    return result(hipErrorInvalidValue);
  }
  for (int k = 0; k < runtime().gpu_count; ++k) {
    if (bus_id(k) == id) {
      *device = k;
      return hipSuccess;
    }
  }
  return result(hipErrorInvalidDevice);
}
WEFT_HIP hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  if (bytes == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  *bytes = runtime().memory->capacity(device);
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceComputeCapability(int* major, int* minor, hipDevice_t device) {
  if (major == nullptr || minor == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  const hipDeviceProp_t p = properties_of(device);
  *major = p.major;
  *minor = p.minor;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetLimit(size_t* value, hipLimit_t limit) {
  if (value == nullptr || limit > hipLimitMallocHeapSize) {
    return result(value == nullptr ? hipErrorInvalidValue : hipErrorNotSupported);
  }
  *value =
      limit == hipLimitStackSize ? runtime().stack_bytes.load() : runtime().limits[limit].load();
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceSetLimit(hipLimit_t limit, size_t value) {
  if (limit > hipLimitMallocHeapSize) {
    return result(hipErrorNotSupported);
  }
  if (limit != hipLimitStackSize) {
    runtime().limits[limit] = value;
    return hipSuccess;
  }
  if (value > cdna::kMaxScratchBytes) {
    return result(hipErrorInvalidValue);
  }
  runtime().stack_bytes = static_cast<uint32_t>(value);
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  for (int* to : {least, greatest}) {
    if (to != nullptr) {
      *to = 0;
    }
  }
  return hipSuccess;
}

WEFT_HIP hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  if (value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  const hipDeviceProp_t p = properties_of(device);
  for (const IntAttribute& each : kIntAttributes) {
    if (each.attribute == attribute) {
      *value = p.*each.field;
      return hipSuccess;
    }
  }
  switch (attribute) {
    case hipDeviceAttributeMaxBlockDimX:
    case hipDeviceAttributeMaxBlockDimY:
    case hipDeviceAttributeMaxBlockDimZ:
    case hipDeviceAttributeMaxThreadsDim:
      *value = p.maxThreadsDim[0];
      break;
    case hipDeviceAttributeMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case hipDeviceAttributeMaxGridDimY:
    case hipDeviceAttributeMaxGridDimZ:
      *value = p.maxGridSize[1];
      break;
    case hipDeviceAttributeMaxSharedMemoryPerBlock:
    case hipDeviceAttributeSharedMemPerBlockOptin:
    case hipDeviceAttributeSharedMemPerMultiprocessor:
    case hipDeviceAttributeMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerBlock);
      break;
    case hipDeviceAttributeMaxPitch:
    case hipDeviceAttributeTotalConstantMemory:
    case hipDeviceAttributeTotalGlobalMem:  // more than an int holds
      *value = 0x7fffffff;
      break;
    case hipDeviceAttributeFineGrainSupport:
    case hipDeviceAttributeMemoryPoolsSupported:
      *value = 1;
      break;
    case hipDeviceAttributeVirtualMemoryManagementSupported:
    case hipDeviceAttributeCanUseStreamWaitValue:
    case hipDeviceAttributeImageSupport:
      *value = 0;
      break;
    default:
      return result(hipErrorInvalidValue);
  }
  return hipSuccess;
}

WEFT_HIP hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t* p, int device) {
  if (p == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  *p = properties_of(device);
  return hipSuccess;
}
WEFT_HIP hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000* old, int device) {
  if (old == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  const hipDeviceProp_t p = properties_of(device);
  std::memset(old, 0, sizeof *old);
  std::memcpy(old->name, p.name, sizeof p.name);
  std::memcpy(old->gcnArchName, p.gcnArchName, sizeof p.gcnArchName);
  std::memcpy(old->maxThreadsDim, p.maxThreadsDim, sizeof p.maxThreadsDim);
  std::memcpy(old->maxGridSize, p.maxGridSize, sizeof p.maxGridSize);
  old->totalGlobalMem = p.totalGlobalMem;
  old->sharedMemPerBlock = p.sharedMemPerBlock;
  old->regsPerBlock = p.regsPerBlock;
  old->warpSize = p.warpSize;
  old->maxThreadsPerBlock = p.maxThreadsPerBlock;
  old->clockRate = p.clockRate;
  old->memoryClockRate = p.memoryClockRate;
  old->memoryBusWidth = p.memoryBusWidth;
  old->totalConstMem = p.totalConstMem;
  old->major = p.major;
  old->minor = p.minor;
  old->multiProcessorCount = p.multiProcessorCount;
  old->l2CacheSize = p.l2CacheSize;
  old->maxThreadsPerMultiProcessor = p.maxThreadsPerMultiProcessor;
  old->clockInstructionRate = p.clockInstructionRate;
  old->arch = p.arch;
  old->concurrentKernels = p.concurrentKernels;
  old->pciBusID = p.pciBusID;
  old->maxSharedMemoryPerMultiProcessor = p.maxSharedMemoryPerMultiProcessor;
  old->canMapHostMemory = p.canMapHostMemory;
  old->cooperativeLaunch = p.cooperativeLaunch;
  old->memPitch = p.memPitch;
  old->ECCEnabled = p.ECCEnabled;
  old->isLargeBar = p.isLargeBar;
  old->managedMemory = p.managedMemory;
  old->directManagedMemAccessFromHost = p.directManagedMemAccessFromHost;
  old->concurrentManagedAccess = p.concurrentManagedAccess;
  return hipSuccess;
}

WEFT_HIP hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  if (can == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(device) || !known_device(peer)) {
    return result(hipErrorInvalidDevice);
  }
  *can = device != peer && gpu(device).node == gpu(peer).node ? 1 : 0;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  int can = 0;
  const hipError_t error = hipDeviceCanAccessPeer(&can, current_device(), peer);
  if (error != hipSuccess || flags != 0) {
    return error != hipSuccess ? error : result(hipErrorInvalidValue);
  }
  if (can == 0) {
    return refuse(hipErrorPeerAccessUnsupported, "",
                  "Device " + std::to_string(current_device()) + " cannot reach device " +
                      std::to_string(peer) + "'s memory: they are not two devices of one node.");
  }
  return result(runtime().memory->set_peer(current_device(), peer, true)
                    ? hipSuccess
                    : hipErrorPeerAccessAlreadyEnabled);
}
WEFT_HIP hipError_t hipDeviceDisablePeerAccess(int peer) {
  int can = 0;
  const hipError_t error = hipDeviceCanAccessPeer(&can, current_device(), peer);
  if (error != hipSuccess) {
    return error;
  }
  return result(can != 0 && runtime().memory->set_peer(current_device(), peer, false)
                    ? hipSuccess
                    : hipErrorPeerAccessNotEnabled);
}
WEFT_HIP hipError_t hipDeviceGetP2PAttribute(int* value, hipDeviceP2PAttr attribute, int device,
                                             int peer) {
  int can = 0;
  const hipError_t error = hipDeviceCanAccessPeer(&can, device, peer);
  if (error != hipSuccess || value == nullptr || device == peer) {
    return error != hipSuccess ? error : result(hipErrorInvalidValue);
  }
  switch (attribute) {
    case hipDevP2PAttrPerformanceRank:
    case hipDevP2PAttrHipArrayAccessSupported:
      *value = 0;
      return hipSuccess;
    case hipDevP2PAttrAccessSupported:
    case hipDevP2PAttrNativeAtomicSupported:
      *value = can;
      return hipSuccess;
  }
  return result(hipErrorInvalidValue);
}

// A context is a device, by another name: programs written for CUDA's driver interface ask for one.
WEFT_HIP hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* context, hipDevice_t device) {
  if (context == nullptr || !known_device(device)) {
    return result(context == nullptr ? hipErrorInvalidValue : hipErrorInvalidDevice);
  }
  *context = context_of(device);
  return hipSuccess;
}
WEFT_HIP hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device) {
  return result(known_device(device) ? hipSuccess : hipErrorInvalidDevice);
}
WEFT_HIP hipError_t hipCtxCreate(hipCtx_t* context, unsigned, hipDevice_t device) {
  const hipError_t error = hipDevicePrimaryCtxRetain(context, device);
  return error != hipSuccess ? error : hipCtxPushCurrent(*context);
}
WEFT_HIP hipError_t hipCtxDestroy(hipCtx_t context) {
  return result(known_device(device_of(context)) ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipCtxGetCurrent(hipCtx_t* context) {
  if (context == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *context = known_device(current_device()) ? context_of(current_device()) : nullptr;
  return hipSuccess;
}
WEFT_HIP hipError_t hipCtxSetCurrent(hipCtx_t context) {
  return context == nullptr ? hipSuccess : hipSetDevice(device_of(context));
}
WEFT_HIP hipError_t hipCtxPushCurrent(hipCtx_t context) {
  if (!known_device(device_of(context))) {
    return result(hipErrorInvalidContext);
  }
  pushed_devices().push_back(current_device());
  return hipSetDevice(device_of(context));
}
WEFT_HIP hipError_t hipCtxPopCurrent(hipCtx_t* context) {
  if (pushed_devices().empty()) {
    return result(hipErrorInvalidContext);
  }
  if (context != nullptr) {
    *context = context_of(current_device());
  }
  current_device() = pushed_devices().back();
  pushed_devices().pop_back();
  return hipSuccess;
}
WEFT_HIP hipError_t hipCtxGetDevice(hipDevice_t* device) { return hipGetDevice(device); }
WEFT_HIP hipError_t hipCtxSynchronize() { return hipDeviceSynchronize(); }

// Caches and LDS have no choice of configurations on these GPUs, and nothing is profiled.
WEFT_HIP hipError_t hipDeviceSetCacheConfig(int) { return hipSuccess; }
WEFT_HIP hipError_t hipDeviceGetCacheConfig(int* config) { return give_zero(config); }
WEFT_HIP hipError_t hipDeviceSetSharedMemConfig(int) { return hipSuccess; }
WEFT_HIP hipError_t hipDeviceGetSharedMemConfig(int* config) { return give_zero(config); }
WEFT_HIP hipError_t hipProfilerStart() { return hipSuccess; }
WEFT_HIP hipError_t hipProfilerStop() { return hipSuccess; }

WEFT_HIP hipError_t hipExtGetLastError() { return hipGetLastError(); }
WEFT_HIP hipError_t hipGetLastError() {
  const hipError_t error = last_error();
  last_error() = hipSuccess;
  return error;
}
WEFT_HIP hipError_t hipPeekAtLastError() { return last_error(); }
WEFT_HIP const char* hipGetErrorName(hipError_t error) { return text_of(error).name; }
WEFT_HIP const char* hipGetErrorString(hipError_t error) { return text_of(error).text; }
WEFT_HIP hipError_t hipDrvGetErrorName(hipError_t error, const char** name) {
  if (name == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *name = text_of(error).name;
  return hipSuccess;
}
WEFT_HIP hipError_t hipDrvGetErrorString(hipError_t error, const char** text) {
  if (text == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *text = text_of(error).text;
  return hipSuccess;
}

}  // namespace weft::hip
