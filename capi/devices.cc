// The C interface's errors and devices.
#include <mutex>
#include <string>
#include <vector>

#include "capi/interface.h"
#include "capi/recorded.h"
#ifdef WEFT_WITH_SIM
#include "sim/hip.h"
#endif

namespace weft::capi {
namespace {

thread_local std::string sentence;

/// Simulated devices are opened like others.
void install_simulator() {
#ifdef WEFT_WITH_SIM
  static std::once_flag once;
  std::call_once(once, sim::install);
#endif
}

weft_device_info to_c(const DeviceInfo& info, const std::string& missing) {
  return {.id = info.id.c_str(),
          .name = info.name.c_str(),
          .target = info.target.c_str(),
          .missing = missing.c_str(),
          .units = info.units,
          .keeps_time = info.keeps_time ? 1 : 0,
          .memory = info.memory,
          .bandwidth = info.bandwidth};
}

}  // namespace

weft_status failed(weft_status status, std::string_view text) {
  try {
    sentence = text;
  } catch (const std::exception&) {
    sentence.clear();
  }
  return status;
}

weft_status failed(const Error& error) { return failed(exit_code(error.kind), error.message); }

Result<std::unique_ptr<Device>> open(std::string_view id) {
  constexpr std::string_view kRecorded = "recorded:";
  if (id.starts_with(kRecorded)) {
    return open_recorded(id.substr(kRecorded.size()));
  }
  install_simulator();
  return open_device(id);
}

}  // namespace weft::capi

using namespace weft;        // NOLINT: the functions below are C's
using namespace weft::capi;  // NOLINT

int32_t weft_version() { return WEFT_VERSION_MAJOR * 1000 + WEFT_VERSION_MINOR; }
const char* weft_error() { return sentence.c_str(); }

weft_status weft_devices(weft_device_info* out, size_t capacity, size_t* count) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(count, "count"));
    install_simulator();
    thread_local std::vector<DeviceListing> listings;
    listings = list_devices();
    for (size_t i = 0; i < std::min(capacity, listings.size()); ++i) {
      DeviceListing& each = listings[i];
      if (!each.missing.empty()) {
        each.info = {};
        each.info.id = each.kind;
      }
      out[i] = to_c(each.info, each.missing);
    }
    *count = listings.size();
    return {};
  });
}

weft_status weft_device_open(const char* id, weft_device** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(id, "id"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(std::unique_ptr<Device> device, open(id));
    *out = new weft_device{std::move(device), {}};
    return {};
  });
}

void weft_device_close(weft_device* device) { delete device; }

weft_status weft_device_describe(const weft_device* device, weft_device_info* out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    WEFT_TRY(check_pointer(out, "out"));
    static const std::string kHere;
    *out = to_c(device->device->info(), kHere);
    return {};
  });
}

void* weft_device_stream(weft_device* device) {
  return device == nullptr ? nullptr : device->device->stream().native;
}

weft_status weft_allocate(weft_device* device, size_t bytes, void** out) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    WEFT_TRY(check_pointer(out, "out"));
    WEFT_ASSIGN(DeviceMemory memory, device->device->allocate(bytes));
    void* data = memory.data();
    device->allocations.insert_or_assign(data, std::move(memory));
    *out = data;
    return {};
  });
}

weft_status weft_free(weft_device* device, void* data) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    if (data != nullptr && device->allocations.erase(data) == 0) {
      return usage_error(
          fmt::format("{} is no address that weft_allocate() gave on this device", data));
    }
    return {};
  });
}

weft_status weft_upload(weft_device* device, void* to, const void* from, size_t bytes) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    return device->device->upload(to, from, bytes);
  });
}

weft_status weft_download(weft_device* device, void* to, const void* from, size_t bytes) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    return device->device->download(to, from, bytes);
  });
}

weft_status weft_synchronize(weft_device* device) {
  return guarded([&]() -> Status {
    WEFT_TRY(check_pointer(device, "device"));
    return device->device->synchronize();
  });
}
