// What the files of the C interface share: errors and exceptions become statuses, structures of
// callers are read by the size that they say.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string_view>

#include "arch/device.h"
#include "base/result.h"
#include "weft/weft.h"

struct weft_device {
  std::unique_ptr<weft::Device> device;
  std::map<void*, weft::DeviceMemory> allocations;  ///< of weft_allocate(), freed before the device
};

namespace weft::capi {

/// Remembers the sentence for weft_error() and gives the status that stands for it.
weft_status failed(const Error& error);
weft_status failed(weft_status status, std::string_view sentence);

/// Runs what gives a Status; nothing is thrown to C.
template <class F>
weft_status guarded(F&& body) {
  try {
    const Status status = body();
    return status.ok() ? WEFT_OK : failed(status.error());
  } catch (const std::exception& error) {  // of the standard library: no memory, no thread
    return failed(device_error(fmt::format("the process has no room: {}", error.what())));
  }
}

/// A caller's structure, whose `size` says how much of it there is: members that it does not have
/// yet are those of `defaults`. Errors (usage): null, or of a later version.
template <class T>
Result<T> read(const T* given, std::string_view name, const T& defaults = {}) {
  if (given == nullptr) {
    return usage_error(fmt::format("{} is null", name));
  }
  if (given->size < sizeof(size_t) || given->size > sizeof(T)) {
    return usage_error(fmt::format(
        "{} says that it has {} bytes, and this library knows {}: set `size` to sizeof, and use "
        "a library that is not older than its header",
        name, given->size, sizeof(T)));
  }
  T result = defaults;
  std::memcpy(&result, given, given->size);
  return result;
}

inline Status check_pointer(const void* pointer, std::string_view name) {
  return pointer != nullptr ? Status() : usage_error(fmt::format("{} is null", name));
}

/// A device's stream; null is the CPU.
inline Stream stream_of(weft_device* device, void* native = nullptr) {
  return device == nullptr ? Stream{} : Stream{device->device.get(), native};
}

/// Opens a device as weft_device_open() does.
Result<std::unique_ptr<Device>> open(std::string_view id);

}  // namespace weft::capi
