// Of the simulated HIP runtime: memory that is allocated and freed in a stream's order, and the
// pools that it comes from. Nothing is kept for later: what was freed is gone, so that who uses it
// afterwards is found out. Addresses are given out at once.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "sim/hip_runtime.h"

namespace weft::hip {
namespace {

using namespace weft::sim;  // NOLINT: what stands behind HIP's functions

/// A pool as long as it is used: by the device it is the current one of, by allocations, by a name.
using Pool = std::shared_ptr<ihipMemPoolHandle_t>;

/// What an allocation takes of a pool, until it is freed.
class Share {
 public:
  Share(Pool pool, size_t bytes) : pool_(std::move(pool)), bytes_(bytes) {}
  ~Share() { pool_->used -= bytes_; }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

 private:
  Pool pool_;
  size_t bytes_;
};

Pool pool_of(hipMemPool_t handle) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().pools.find(handle);
  return found == runtime().pools.end() ? nullptr : found->second;
}

Pool make_pool(int device, uint64_t most_bytes) {
  auto pool = std::make_shared<ihipMemPoolHandle_t>();
  pool->device = device;
  pool->most_bytes = most_bytes;
  const std::lock_guard lock(runtime().mutex);
  runtime().pools[pool.get()] = pool;
  return pool;
}

/// The device's own pool, which it has from the first time that it is asked for.
Pool default_pool(int device) {
  HipGpu& on = gpu(device);
  std::call_once(on.pool_made, [&] { on.default_pool = on.pool = make_pool(device, 0); });
  return on.default_pool;
}
Pool current_pool(int device) {
  default_pool(device);
  const std::lock_guard lock(runtime().mutex);
  return gpu(device).pool;
}

hipError_t allocate_from(const Pool& pool, void** pointer, size_t bytes, ihipStream_t& stream) {
  const uint64_t used = pool->used.fetch_add(bytes) + bytes;
  const auto share = std::make_shared<Share>(pool, bytes);
  if (used < bytes || (pool->most_bytes != 0 && used > pool->most_bytes)) {
    return result(hipErrorOutOfMemory);
  }
  const hipError_t error = allocate(pointer, bytes, {pool->device, Grain::coarse},
                                    hipMemoryTypeDevice, 0, std::shared_ptr<void>(share));
  if (error != hipSuccess) {
    return error;
  }
  uint64_t high = pool->used_high;
  while (high < used && !pool->used_high.compare_exchange_weak(high, used)) {
  }
  return result(capture(stream, hipGraphNodeTypeMemAlloc, {}).value_or(hipSuccess));
}

/// Copies a value to or from what the caller points to.
template <class T>
T read_as(const void* value) {
  T read{};
  std::memcpy(&read, value, sizeof read);
  return read;
}
template <class T>
hipError_t write_as(void* value, T written) {
  std::memcpy(value, &written, sizeof written);
  return hipSuccess;
}

}  // namespace

WEFT_HIP hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  ihipStream_t* known = stream_of(stream);
  if (known == nullptr || pointer == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  return allocate_from(current_pool(known->device), pointer, bytes, *known);
}
WEFT_HIP hipError_t hipMallocFromPoolAsync(void** pointer, size_t bytes, hipMemPool_t pool,
                                           hipStream_t stream) {
  ihipStream_t* known = stream_of(stream);
  const Pool from = pool_of(pool);
  if (known == nullptr || pointer == nullptr || from == nullptr) {
    return result(known == nullptr ? hipErrorInvalidHandle : hipErrorInvalidValue);
  }
  return allocate_from(from, pointer, bytes, *known);
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
  // Once nobody has this any more. A graph does as long as it may be launched.
  std::shared_ptr<void> last(pointer, [share = std::move(allocation.share)](void* p) {
    (void)memory().free(address_of(p));
  });
  if (const auto captured = capture(*known, hipGraphNodeTypeMemFree, [last] {})) {
    return result(*captured);
  }
  submit(*known, [last = std::move(last)]() mutable { last.reset(); });
  return hipSuccess;
}

WEFT_HIP hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
  if (pool == nullptr || !known_device(device)) {
    return result(pool == nullptr ? hipErrorInvalidValue : hipErrorInvalidDevice);
  }
  *pool = default_pool(device).get();
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device) {
  if (pool == nullptr || !known_device(device)) {
    return result(pool == nullptr ? hipErrorInvalidValue : hipErrorInvalidDevice);
  }
  *pool = current_pool(device).get();
  return hipSuccess;
}
WEFT_HIP hipError_t hipDeviceSetMemPool(int device, hipMemPool_t pool) {
  if (!known_device(device)) {
    return result(hipErrorInvalidDevice);
  }
  const Pool wanted = pool_of(pool);
  if (wanted == nullptr || wanted->device != device) {
    return result(hipErrorInvalidValue);
  }
  default_pool(device);
  const std::lock_guard lock(runtime().mutex);
  gpu(device).pool = wanted;
  return hipSuccess;
}

WEFT_HIP hipError_t hipMemPoolCreate(hipMemPool_t* pool, const hipMemPoolProps* properties) {
  if (pool == nullptr || properties == nullptr ||
      properties->allocType != hipMemAllocationTypePinned ||
      properties->location.type != hipMemLocationTypeDevice ||
      !known_device(properties->location.id)) {
    return result(hipErrorInvalidValue);
  }
  if (properties->handleTypes != 0) {
    return refuse(hipErrorNotSupported, "", kOneProcess);
  }
  *pool = make_pool(properties->location.id, properties->maxSize).get();
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemPoolDestroy(hipMemPool_t pool) {
  const Pool named = pool_of(pool);
  if (named == nullptr || named == default_pool(named->device)) {
    return result(hipErrorInvalidValue);
  }
  const std::lock_guard lock(runtime().mutex);
  HipGpu& on = gpu(named->device);
  if (on.pool == named) {
    on.pool = on.default_pool;
  }
  runtime().pools.erase(pool);
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemPoolTrimTo(hipMemPool_t pool, size_t) {
  return result(pool_of(pool) != nullptr ? hipSuccess : hipErrorInvalidValue);
}

WEFT_HIP hipError_t hipMemPoolSetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute,
                                           void* value) {
  const Pool known = pool_of(pool);
  if (known == nullptr || value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  switch (attribute) {
    case hipMemPoolReuseFollowEventDependencies:
    case hipMemPoolReuseAllowOpportunistic:
    case hipMemPoolReuseAllowInternalDependencies:
      known->reuse[attribute - 1] = read_as<int>(value);
      return hipSuccess;
    case hipMemPoolAttrReleaseThreshold:
      known->release_threshold = read_as<uint64_t>(value);
      return hipSuccess;
    case hipMemPoolAttrReservedMemHigh:
    case hipMemPoolAttrUsedMemHigh:
      if (read_as<uint64_t>(value) != 0) {
        break;  // may be reset, no more
      }
      known->used_high = known->used.load();
      return hipSuccess;
    case hipMemPoolAttrReservedMemCurrent:
    case hipMemPoolAttrUsedMemCurrent:
      break;
  }
  return result(hipErrorInvalidValue);
}
WEFT_HIP hipError_t hipMemPoolGetAttribute(hipMemPool_t pool, hipMemPoolAttr attribute,
                                           void* value) {
  const Pool known = pool_of(pool);
  if (known == nullptr || value == nullptr) {
    return result(hipErrorInvalidValue);
  }
  switch (attribute) {
    case hipMemPoolReuseFollowEventDependencies:
    case hipMemPoolReuseAllowOpportunistic:
    case hipMemPoolReuseAllowInternalDependencies:
      return write_as(value, known->reuse[attribute - 1].load());
    case hipMemPoolAttrReleaseThreshold:
      return write_as(value, known->release_threshold.load());
    case hipMemPoolAttrReservedMemCurrent:
    case hipMemPoolAttrUsedMemCurrent:
      return write_as(value, known->used.load());
    case hipMemPoolAttrReservedMemHigh:
    case hipMemPoolAttrUsedMemHigh:
      return write_as(value, known->used_high.load());
  }
  return result(hipErrorInvalidValue);
}

// Access to a pool is access to all memory of its device, as hipDeviceEnablePeerAccess gives it.
WEFT_HIP hipError_t hipMemPoolSetAccess(hipMemPool_t pool, const hipMemAccessDesc* wanted,
                                        size_t count) {
  const Pool known = pool_of(pool);
  if (known == nullptr || (wanted == nullptr && count != 0)) {
    return result(hipErrorInvalidValue);
  }
  const auto possible = [&](const hipMemAccessDesc& each) {
    const int from = each.location.id;
    const bool own = from == known->device;
    return each.location.type == hipMemLocationTypeDevice && known_device(from) &&
           gpu(from).node == gpu(known->device).node &&
           (each.flags == hipMemAccessFlagsProtReadWrite ||
            (each.flags == hipMemAccessFlagsProtNone && !own));
  };
  if (!std::all_of(wanted, wanted + count, possible)) {
    return result(hipErrorInvalidValue);
  }
  for (size_t k = 0; k < count; ++k) {
    if (wanted[k].location.id != known->device) {
      memory().set_peer(wanted[k].location.id, known->device,
                        wanted[k].flags == hipMemAccessFlagsProtReadWrite);
    }
  }
  return hipSuccess;
}
WEFT_HIP hipError_t hipMemPoolGetAccess(hipMemAccessFlags* flags, hipMemPool_t pool,
                                        hipMemLocation* location) {
  const Pool known = pool_of(pool);
  if (known == nullptr || flags == nullptr || location == nullptr ||
      location->type != hipMemLocationTypeDevice || !known_device(location->id)) {
    return result(hipErrorInvalidValue);
  }
  *flags = memory().reaches(location->id, known->device) ? hipMemAccessFlagsProtReadWrite
                                                         : hipMemAccessFlagsProtNone;
  return hipSuccess;
}

WEFT_HIP hipError_t hipMemPoolExportToShareableHandle(void*, hipMemPool_t, unsigned, unsigned) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}
WEFT_HIP hipError_t hipMemPoolImportFromShareableHandle(hipMemPool_t*, void*, unsigned, unsigned) {
  return refuse(hipErrorNotSupported, "", kOneProcess);
}

}  // namespace weft::hip
