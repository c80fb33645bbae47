// Of the simulated HIP runtime: allocations, what is known of a pointer, copies and fills.
#include <algorithm>
#include <cstring>
#include <string>

#include "sim/hip_runtime.h"
#include "sim/offload_bundle.h"

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
Memory& memory() { return *runtime().memory; }

hipError_t allocate(void** pointer, size_t bytes, Placement placement, hipMemoryType type,
                    unsigned flags) {
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
  runtime().allocations[address.value()] = {type, current_device(), flags, false};
  return hipSuccess;
}
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
/// The same, and forgets it; false also where `registered` is another.
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
/// Before memory goes: waits for the device it is of; the host's may be in use by any.
void wait_for_users(const HipAllocation& allocation) {
  for (int device = 0; device < runtime().gpu_count; ++device) {
    if (allocation.type != hipMemoryTypeDevice || device == allocation.device) {
      wait_for_device(device);
    }
  }
}

/// Whether bytes lie in one allocation or, where they need not, in none.
bool holds(const void* pointer, size_t bytes, bool in_allocation) {
  Memory::Range range;
  if (!memory().find(address_of(pointer), range)) {
    return pointer != nullptr && !in_allocation;
  }
  return bytes <= range.end - address_of(pointer);
}
bool in_allocation(const void* pointer) {
  Memory::Range range;
  return memory().find(address_of(pointer), range);
}

/// Does something to memory in its turn, and returns the error: at once, with what the stream's
/// device failed with before, or when the stream is next waited for.
template <class F>
hipError_t in_stream(hipStream_t handle, bool later, F access) {
  ihipStream_t* stream = stream_of(handle);
  if (stream == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  const auto run = [access] {
    const Memory::Use use(memory());
    const hipError_t error = access();
    memory().note_progress();
    return error;
  };
  if (later) {
    submit(*stream, [run, device = stream->device] {
      if (const hipError_t error = run(); error != hipSuccess) {
        gpu(device).failed = error;
      }
    });
    return hipSuccess;
  }
  hipError_t error = hipSuccess;
  perform(*stream, [&] { error = run(); });
  const hipError_t before = take_failure(stream->device);
  return result(error != hipSuccess ? error : before);
}

/// A copy of `height` rows. Bytes of the host that were not made known to HIP may be the caller's
/// stack: their copies are done when this returns.
struct Copy {
  void* to = nullptr;
  size_t to_pitch = 0;
  const void* from = nullptr;
  size_t from_pitch = 0;
  size_t width = 0;
  size_t height = 1;
  bool to_device = false;
  bool from_device = false;

  bool valid() const {
    const auto extent = [&](size_t pitch) { return pitch * (height - 1) + width; };
    return holds(to, extent(to_pitch), to_device) && holds(from, extent(from_pitch), from_device);
  }
  hipError_t run() const {
    if (!valid()) {
      return hipErrorInvalidValue;
    }
    for (size_t row = 0; row < height; ++row) {
      std::memmove(static_cast<char*>(to) + row * to_pitch,
                   static_cast<const char*>(from) + row * from_pitch, width);
    }
    return hipSuccess;
  }
};
hipError_t copy(const Copy& what, hipStream_t stream, bool later) {
  if (what.width == 0 || what.height == 0) {
    return stream_of(stream) != nullptr ? hipSuccess : result(hipErrorInvalidHandle);
  }
  const bool too_large =
      what.height > 1 &&
      (what.to_pitch > SIZE_MAX / 2 / what.height || what.from_pitch > SIZE_MAX / 2 / what.height ||
       what.width > what.to_pitch || what.width > what.from_pitch);
  if (too_large || !what.valid()) {
    return result(hipErrorInvalidValue);
  }
  return in_stream(stream, later && in_allocation(what.to) && in_allocation(what.from),
                   [what] { return what.run(); });
}
hipError_t copy(Copy what, hipMemcpyKind kind, hipStream_t stream, bool later) {
  if (kind > hipMemcpyDefault) {
    return result(hipErrorInvalidMemcpyDirection);
  }
  what.to_device = kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  what.from_device = kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  return copy(what, stream, later);
}
Copy row(void* to, const void* from, size_t bytes) {
  return {.to = to, .from = from, .width = bytes};
}

template <class T>
hipError_t fill(void* pointer, T value, size_t count, hipStream_t stream, bool later) {
  if (count == 0) {
    return stream_of(stream) != nullptr ? hipSuccess : result(hipErrorInvalidHandle);
  }
  if (count > SIZE_MAX / sizeof(T) || !holds(pointer, count * sizeof(T), true)) {
    return result(hipErrorInvalidValue);
  }
  return in_stream(stream, later, [=] {
    if (!holds(pointer, count * sizeof(T), true)) {
      return hipErrorInvalidValue;
    }
    if constexpr (sizeof(T) == 1) {
      std::memset(pointer, value, count);
    } else {
      for (size_t k = 0; k < count; ++k) {
        std::memcpy(static_cast<char*>(pointer) + k * sizeof(T), &value, sizeof(T));
      }
    }
    return hipSuccess;
  });
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
  return allocate_here(pointer, bytes, Grain::coarse, 0);
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
WEFT_HIP hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  const ihipStream_t* known = stream_of(stream);
  if (known == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  return allocate(pointer, bytes, {known->device, Grain::coarse}, hipMemoryTypeDevice, 0);
}
WEFT_HIP hipError_t hipFree(void* pointer) {
  HipAllocation allocation;
  if (pointer == nullptr) {
    return hipSuccess;
  }
  if (!give_up(address_of(pointer), false, allocation)) {
    return result(hipErrorInvalidValue);
  }
  wait_for_users(allocation);
  return result(memory().free(address_of(pointer)).ok() ? hipSuccess : hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr) {
    return result(hipErrorInvalidHandle);
  }
  HipAllocation allocation;
  if (pointer == nullptr) {
    return hipSuccess;
  }
  if (!give_up(address_of(pointer), false, allocation)) {
    return result(hipErrorInvalidValue);
  }
  submit(*known, [pointer] { (void)memory().free(address_of(pointer)); });
  return hipSuccess;
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
  if (device == nullptr || !in_allocation(host)) {
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
  runtime().allocations[address_of(pointer)] = {hipMemoryTypeHost, current_device(), flags, true};
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
                   .device = -2,  // hipInvalidDeviceId
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

WEFT_HIP hipError_t hipMemcpy(void* to, const void* from, size_t bytes, hipMemcpyKind kind) {
  return copy(row(to, from, bytes), kind, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipMemcpyKind kind,
                                   hipStream_t stream) {
  return copy(row(to, from, bytes), kind, stream, true);
}
WEFT_HIP hipError_t hipMemcpyWithStream(void* to, const void* from, size_t bytes,
                                        hipMemcpyKind kind, hipStream_t stream) {
  return copy(row(to, from, bytes), kind, stream, false);
}
WEFT_HIP hipError_t hipMemcpyHtoD(hipDeviceptr_t to, void* from, size_t bytes) {
  return copy(row(to, from, bytes), hipMemcpyHostToDevice, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyDtoH(void* to, hipDeviceptr_t from, size_t bytes) {
  return copy(row(to, from, bytes), hipMemcpyDeviceToHost, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes) {
  return copy(row(to, from, bytes), hipMemcpyDeviceToDevice, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, void* from, size_t bytes,
                                       hipStream_t stream) {
  return copy(row(to, from, bytes), hipMemcpyHostToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyDtoHAsync(void* to, hipDeviceptr_t from, size_t bytes,
                                       hipStream_t stream) {
  return copy(row(to, from, bytes), hipMemcpyDeviceToHost, stream, true);
}
WEFT_HIP hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes,
                                       hipStream_t stream) {
  return copy(row(to, from, bytes), hipMemcpyDeviceToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes, hipStream_t stream) {
  const auto lies_in = [](const void* pointer, int device) {
    Memory::Range range;
    return memory().find(address_of(pointer), range) && range.placement.home == device;
  };
  if (!known_device(to_device) || !known_device(from_device)) {
    return result(hipErrorInvalidDevice);
  }
  if (bytes != 0 && (!lies_in(to, to_device) || !lies_in(from, from_device))) {
    return result(hipErrorInvalidValue);
  }
  return copy(row(to, from, bytes), hipMemcpyDeviceToDevice, stream, true);
}
WEFT_HIP hipError_t hipMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                                  size_t bytes) {
  // It begins when both devices are done with what their default streams have.
  for (const int device : {to_device, from_device}) {
    if (known_device(device)) {
      perform(gpu(device).null_stream, {});
    }
  }
  const hipError_t error = hipMemcpyPeerAsync(to, to_device, from, from_device, bytes, nullptr);
  if (error != hipSuccess) {
    return error;
  }
  perform(gpu().null_stream, {});
  return result(take_failure(current_device()));
}
WEFT_HIP hipError_t hipMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                size_t width, size_t height, hipMemcpyKind kind) {
  return copy(Copy{to, to_pitch, from, from_pitch, width, height}, kind, nullptr, false);
}
WEFT_HIP hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, hipMemcpyKind kind,
                                     hipStream_t stream) {
  return copy(Copy{to, to_pitch, from, from_pitch, width, height}, kind, stream, true);
}

WEFT_HIP hipError_t hipMemset(void* pointer, int value, size_t bytes) {
  return fill(pointer, static_cast<uint8_t>(value), bytes, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetAsync(void* pointer, int value, size_t bytes, hipStream_t stream) {
  return fill(pointer, static_cast<uint8_t>(value), bytes, stream, true);
}
WEFT_HIP hipError_t hipMemsetD8(hipDeviceptr_t pointer, unsigned char value, size_t count) {
  return fill(pointer, value, count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD8Async(hipDeviceptr_t pointer, unsigned char value, size_t count,
                                     hipStream_t stream) {
  return fill(pointer, value, count, stream, true);
}
WEFT_HIP hipError_t hipMemsetD16(hipDeviceptr_t pointer, unsigned short value, size_t count) {
  return fill(pointer, value, count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD16Async(hipDeviceptr_t pointer, unsigned short value, size_t count,
                                      hipStream_t stream) {
  return fill(pointer, value, count, stream, true);
}
WEFT_HIP hipError_t hipMemsetD32(hipDeviceptr_t pointer, int value, size_t count) {
  return fill(pointer, value, count, nullptr, false);
}
WEFT_HIP hipError_t hipMemsetD32Async(hipDeviceptr_t pointer, int value, size_t count,
                                      hipStream_t stream) {
  return fill(pointer, value, count, stream, true);
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
