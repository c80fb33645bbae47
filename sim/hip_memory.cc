// Of the simulated HIP runtime: allocations, and what is known of a pointer.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/divide.h"
#include "sim/hip_runtime.h"
#include "sim/offload_bundle.h"

namespace weft::sim {

using namespace weft::hip;  // NOLINT: this is HIP's other side

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
Memory& memory() { return *runtime().memory; }

bool holds(const void* pointer, size_t bytes, bool in_allocation) {
  Memory::Range range;
  if (!memory().find(address_of(pointer), range)) {
    return pointer != nullptr && !in_allocation;
  }
  return bytes <= range.end - address_of(pointer);
}

hipError_t allocate(void** pointer, size_t bytes, Placement placement, hipMemoryType type,
                    unsigned flags, std::shared_ptr<void> share) {
  if (pointer == nullptr) {
    return result(hipErrorInvalidValue);
  }
  *pointer = nullptr;
  if (!known_device(current_device())) {
    return result(hipErrorNoDevice);
  }
  if (bytes == 0) {
    return hipSuccess;
  }
  const Result<uint64_t> address = memory().allocate(bytes, placement);
  if (!address.ok()) {
    return result(hipErrorOutOfMemory);
  }
  *pointer = reinterpret_cast<void*>(address.value());
  const std::lock_guard lock(runtime().mutex);
  const int device = placement.home == kHost ? current_device() : placement.home;
  runtime().allocations[address.value()] = {type, device, flags, false, std::move(share)};
  return hipSuccess;
}
bool give_up(uint64_t begin, bool registered, HipAllocation& allocation) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().allocations.find(begin);
  if (found == runtime().allocations.end() || found->second.registered != registered) {
    return false;
  }
  allocation = found->second;
  runtime().allocations.erase(found);
  return true;
}

}  // namespace weft::sim

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

constexpr int kInvalidDevice = -2;  // hipInvalidDeviceId

hipError_t allocate_here(void** pointer, size_t bytes, Grain grain, unsigned flags) {
  return allocate(pointer, bytes, {current_device(), grain}, hipMemoryTypeDevice, flags);
}

/// What a program asked for at the address where an allocation begins; false: nothing.
bool asked_for(uint64_t begin, HipAllocation& allocation) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().allocations.find(begin);
  if (found == runtime().allocations.end()) {
    return false;
  }
  allocation = found->second;
  return true;
}
/// Before memory goes: waits for the device it is of; the host's may be in use by any.
void wait_for_users(const HipAllocation& allocation) {
  for (int device = 0; device < runtime().gpu_count; ++device) {
    if (allocation.type != hipMemoryTypeDevice || device == allocation.device) {
      wait_for_device(device);
    }
  }
}

/// All that is known of a pointer into an allocation; false: it points into none.
bool attributes_of(const void* pointer, hipPointerAttribute_t& out, Memory::Range& range) {
  if (!memory().find(address_of(pointer), range)) {
    return false;
  }
  HipAllocation allocation;
  if (!asked_for(range.begin, allocation)) {  // a module's
    allocation.device = range.placement.home;
  }
  auto* same = const_cast<void*>(pointer);
  out = {.type = allocation.type,
         .device = allocation.device,
         .devicePointer = same,
         .hostPointer = allocation.type == hipMemoryTypeDevice ? nullptr : same,
         .isManaged = allocation.type == hipMemoryTypeManaged ? 1 : 0,
         .allocationFlags = allocation.flags};
  return true;
}

}  // namespace

WEFT_HIP hipError_t hipMalloc(void** pointer, size_t bytes) {
  if (const hipError_t error = refuse_while_capturing(); error != hipSuccess) {
    return error;
  }
  return allocate_here(pointer, bytes, Grain::coarse, 0);
}
WEFT_HIP hipError_t hipMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  constexpr size_t kAlignment = 256;
  size_t bytes = 0;
  if (pitch == nullptr || width > SIZE_MAX - kAlignment ||
      __builtin_mul_overflow(round_up(width, kAlignment), height, &bytes)) {
    return result(pitch == nullptr ? hipErrorInvalidValue : hipErrorOutOfMemory);
  }
  *pitch = round_up(width, kAlignment);
  return hipMalloc(pointer, bytes);
}
WEFT_HIP hipError_t hipMemAllocPitch(hipDeviceptr_t* pointer, size_t* pitch, size_t width,
                                     size_t height, unsigned element_bytes) {
  return element_bytes == 4 || element_bytes == 8 || element_bytes == 16
             ? hipMallocPitch(pointer, pitch, width, height)
             : result(hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipMalloc3D(hipPitchedPtr* pointer, hipExtent extent) {
  size_t rows = 0;
  if (pointer == nullptr || __builtin_mul_overflow(extent.height, extent.depth, &rows)) {
    return result(hipErrorInvalidValue);
  }
  *pointer = {nullptr, 0, extent.width, extent.height};
  return hipMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, rows);
}
WEFT_HIP hipError_t hipExtMallocWithFlags(void** pointer, size_t bytes, unsigned flags) {
  switch (flags) {
    case hipDeviceMallocDefault:
    case hipDeviceMallocContiguous:
      return allocate_here(pointer, bytes, Grain::coarse, flags);
    case hipDeviceMallocFinegrained:
    case hipMallocSignalMemory:
      return allocate_here(pointer, bytes, Grain::fine, flags);
    case hipDeviceMallocUncached:
      return allocate_here(pointer, bytes, Grain::uncached, flags);
    default:
      return result(hipErrorInvalidValue);
  }
}
WEFT_HIP hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  if (flags != hipMemAttachGlobal && flags != hipMemAttachHost) {
    return result(hipErrorInvalidValue);
  }
  return allocate(pointer, bytes, {kHost, Grain::fine}, hipMemoryTypeManaged, flags);
}
WEFT_HIP hipError_t hipFree(void* pointer) {
  HipAllocation allocation;
  if (pointer == nullptr) {
    return hipSuccess;
  }
  if (const hipError_t error = refuse_while_capturing(); error != hipSuccess) {
    return error;
  }
  if (!give_up(address_of(pointer), false, allocation)) {
    return result(hipErrorInvalidValue);
  }
  wait_for_users(allocation);
  return result(memory().free(address_of(pointer)).ok() ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = hipHostMallocPortable | hipHostMallocMapped |
                              hipHostMallocWriteCombined | hipHostMallocNumaUser |
                              hipHostMallocCoherent | hipHostMallocNonCoherent;
  constexpr unsigned kBoth = hipHostMallocCoherent | hipHostMallocNonCoherent;
  if ((flags & ~kKnown) != 0 || (flags & kBoth) == kBoth) {
    return result(hipErrorInvalidValue);
  }
  const Grain grain = (flags & hipHostMallocNonCoherent) != 0 ? Grain::coarse : Grain::fine;
  return allocate(pointer, bytes, {kHost, grain}, hipMemoryTypeHost, flags);
}
WEFT_HIP hipError_t hipHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return hipHostMalloc(pointer, bytes, flags);
}
WEFT_HIP hipError_t hipMallocHost(void** pointer, size_t bytes) {
  return hipHostMalloc(pointer, bytes, 0);
}
WEFT_HIP hipError_t hipHostFree(void* pointer) { return hipFree(pointer); }
WEFT_HIP hipError_t hipFreeHost(void* pointer) { return hipFree(pointer); }
WEFT_HIP hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned) {
  if (device == nullptr || !holds(host, 0, true)) {
    return result(hipErrorInvalidValue);
  }
  *device = host;
  return hipSuccess;
}
WEFT_HIP hipError_t hipHostGetFlags(unsigned* flags, void* pointer) {
  hipPointerAttribute_t attributes;
  Memory::Range range;
  if (flags == nullptr || !attributes_of(pointer, attributes, range) ||
      attributes.type != hipMemoryTypeHost) {
    return result(hipErrorInvalidValue);
  }
  *flags = attributes.allocationFlags;
  return hipSuccess;
}
WEFT_HIP hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  if (pointer == nullptr || bytes == 0 || readable_from(pointer).size() < bytes) {
    return result(hipErrorInvalidValue);
  }
  const Grain grain = (flags & hipExtHostRegisterCoarseGrained) != 0 ? Grain::coarse : Grain::fine;
  if (!memory().add(address_of(pointer), bytes, {kHost, grain}).ok()) {
    return result(hipErrorHostMemoryAlreadyRegistered);
  }
  const std::lock_guard lock(runtime().mutex);
  runtime().allocations[address_of(pointer)] = {hipMemoryTypeHost, current_device(), flags, true,
                                                nullptr};
  return hipSuccess;
}
WEFT_HIP hipError_t hipHostUnregister(void* pointer) {
  HipAllocation allocation;
  if (!give_up(address_of(pointer), true, allocation)) {
    return result(hipErrorHostMemoryNotRegistered);
  }
  wait_for_users(allocation);
  return result(memory().free(address_of(pointer)).ok() ? hipSuccess : hipErrorInvalidValue);
}

WEFT_HIP hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  if (free == nullptr || total == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!known_device(current_device())) {
    return result(hipErrorNoDevice);
  }
  *total = memory().capacity(current_device());
  *free = *total - memory().used(current_device());
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* bytes,
                                          hipDeviceptr_t pointer) {
  Memory::Range range;
  if (!memory().find(address_of(pointer), range)) {
    return result(hipErrorNotFound);
  }
  if (base != nullptr) {
    *base = reinterpret_cast<void*>(range.begin);
  }
  if (bytes != nullptr) {
    *bytes = range.end - range.begin;
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemPtrGetInfo(void* pointer, size_t* bytes) {
  Memory::Range range;
  if (bytes == nullptr || !memory().find(address_of(pointer), range)) {
    return result(hipErrorInvalidValue);
  }
  *bytes = range.end - range.begin;
  return hipSuccess;
}
WEFT_HIP hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes,
                                            const void* pointer) {
  Memory::Range range;
  if (attributes == nullptr || pointer == nullptr) {
    return result(hipErrorInvalidValue);
  }
  if (!attributes_of(pointer, *attributes, range)) {
    *attributes = {.type = hipMemoryTypeUnregistered,
                   .device = kInvalidDevice,
                   .devicePointer = nullptr,
                   .hostPointer = const_cast<void*>(pointer),
                   .isManaged = 0,
                   .allocationFlags = 0};
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute attribute,
                                           hipDeviceptr_t pointer) {
  hipPointerAttribute_t all;
  Memory::Range range;
  if (data == nullptr || !attributes_of(pointer, all, range)) {
    return result(hipErrorInvalidValue);
  }
  const auto give = [data](const auto& value) {
    std::memcpy(data, &value, sizeof value);
    return hipSuccess;
  };
  switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(all.type);
    case HIP_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(all.devicePointer);
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
      return all.hostPointer != nullptr ? give(all.hostPointer) : result(hipErrorInvalidValue);
    case HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(uint32_t{0});
    case HIP_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(range.begin);
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(static_cast<uint32_t>(all.isManaged));
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(all.device);
    case HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE:
      return give(uint32_t{0});
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(range.begin);
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(range.end - range.begin);
    case HIP_POINTER_ATTRIBUTE_MAPPED:
      return give(uint32_t{1});
    case HIP_POINTER_ATTRIBUTE_CONTEXT:
    case HIP_POINTER_ATTRIBUTE_P2P_TOKENS:
      return result(hipErrorNotSupported);
  }
  return result(hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipDrvPointerGetAttributes(unsigned count, hipPointer_attribute* attributes,
                                               void** data, hipDeviceptr_t pointer) {
  if (attributes == nullptr || data == nullptr) {
    return result(hipErrorInvalidValue);
  }
  for (unsigned k = 0; k < count; ++k) {
    const hipError_t error = hipPointerGetAttribute(data[k], attributes[k], pointer);
    if (error != hipSuccess) {
      return error;
    }
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemAdvise(const void* pointer, size_t bytes, hipMemoryAdvise advice, int) {
  hipPointerAttribute_t attributes;
  Memory::Range range;
  if (!attributes_of(pointer, attributes, range) || bytes > range.end - address_of(pointer)) {
    return result(hipErrorInvalidValue);
  }
  if (advice != hipMemAdviseSetCoarseGrain && advice != hipMemAdviseUnsetCoarseGrain) {
    return hipSuccess;  // where it lies best: of no consequence here
  }
  if (attributes.isManaged == 0 || address_of(pointer) != range.begin ||
      bytes != range.end - range.begin) {
    return refuse(hipErrorNotSupported, "",
                  "hipMemAdvise can change the grain of a whole allocation of hipMallocManaged "
                  "and of nothing less or else; " +
                      std::to_string(bytes) + " bytes " + memory().describe(address_of(pointer)) +
                      " were named.");
  }
  memory().set_grain(range.begin,
                     advice == hipMemAdviseSetCoarseGrain ? Grain::coarse : Grain::fine);
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemPrefetchAsync(const void* pointer, size_t bytes, int,
                                        hipStream_t stream) {
  if (stream_of(stream) == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  return result(holds(pointer, bytes, true) ? hipSuccess : hipErrorInvalidValue);
}

WEFT_HIP hipError_t hipMemRangeGetAttribute(void* data, size_t data_bytes,
                                            hipMemRangeAttribute attribute, const void* pointer,
                                            size_t bytes) {
  Memory::Range range;
  if (data == nullptr || data_bytes != sizeof(int) || bytes == 0 || !holds(pointer, bytes, true) ||
      !memory().find(address_of(pointer), range)) {
    return result(hipErrorInvalidValue);
  }
  int value = 0;
  switch (attribute) {
    case hipMemRangeAttributeReadMostly:
      break;
    case hipMemRangeAttributePreferredLocation:
    case hipMemRangeAttributeAccessedBy:
    case hipMemRangeAttributeLastPrefetchLocation:
      value = kInvalidDevice;  // none: memory stays where it is, whatever is advised
      break;
    case hipMemRangeAttributeCoherencyMode:
      value = range.placement.grain == Grain::coarse ? 1 : 0;
      break;
    default:
      return result(hipErrorInvalidValue);
  }
  std::memcpy(data, &value, sizeof value);
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemRangeGetAttributes(void** data, size_t* data_bytes,
                                             hipMemRangeAttribute* attributes, size_t count,
                                             const void* pointer, size_t bytes) {
  if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0) {
    return result(hipErrorInvalidValue);
  }
  for (size_t k = 0; k < count; ++k) {
    const hipError_t error =
        hipMemRangeGetAttribute(data[k], data_bytes[k], attributes[k], pointer, bytes);
    if (error != hipSuccess) {
      return error;
    }
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipStreamAttachMemAsync(hipStream_t stream, void* pointer, size_t bytes,
                                            unsigned flags) {
  constexpr unsigned kSingle = 4;
  const bool known_flags =
      flags == hipMemAttachGlobal || flags == hipMemAttachHost || flags == kSingle;
  if (stream_of(stream) == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  return result(known_flags && holds(pointer, bytes, true) ? hipSuccess : hipErrorInvalidValue);
}

WEFT_HIP hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t*, void*) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}
WEFT_HIP hipError_t hipIpcOpenMemHandle(void**, hipIpcMemHandle_t, unsigned) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}
WEFT_HIP hipError_t hipIpcCloseMemHandle(void*) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}

}  // namespace weft::hip
