#include "arch/cdna/device.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "arch/cdna/hip.h"

namespace weft::cdna {
namespace {

std::optional<Simulator> simulator;  // set once, before devices are opened

/// Why there is none.
std::string_view no_simulator =
    "this build has no simulator (llvm-22-dev was not there when it was configured)";

Result<int> device_count(const hip::HipApi& api) {
  int count = 0;
  hip::hipError_t error = api.hipInit(0);
  if (error == hip::hipSuccess) {
    error = api.hipGetDeviceCount(&count);
  }
  if (error != hip::hipSuccess || count == 0) {
    return device_error(
        fmt::format("ROCm finds no AMD GPU ({})",
                    error == hip::hipSuccess ? "none is there" : api.hipGetErrorString(error)));
  }
  return count;
}

Result<std::unique_ptr<HipDevice>> open_hip(int index) {
  WEFT_ASSIGN(const hip::HipApi* api, hip_library());
  WEFT_ASSIGN(const int count, device_count(*api));
  if (index >= count) {
    return device_error(fmt::format("there is no hip:{}, only hip:0 to hip:{}", index, count - 1));
  }
  return HipDevice::open(*api, index, fmt::format("hip:{}", index), nullptr);
}

/// As --device names it: "sim:gfx942", "sim:gfx942*8:3".
std::string simulated_id(const Node& node) {
  return node.count == 1
             ? fmt::format("sim:{}", name_of(node.target))
             : fmt::format("sim:{}*{}:{}", name_of(node.target), node.count, node.index);
}

Result<std::unique_ptr<HipDevice>> open_simulated(const Node& node) {
  const std::string id = simulated_id(node);
  if (!simulator) {
    return device_error(fmt::format("{} cannot be had: {}", id, no_simulator));
  }
  WEFT_ASSIGN(const int ordinal, simulator->ordinal(node));
  return HipDevice::open(*simulator->api, ordinal, id, &*simulator);
}

}  // namespace

void set_simulator(const Simulator& given) { simulator = given; }
void refuse_simulator(std::string_view why) { no_simulator = why; }

Result<std::unique_ptr<HipDevice>> open_hip_device(std::string_view id) {
  const size_t colon = id.find(':');
  const std::string_view kind = id.substr(0, colon);
  const std::string_view which = colon == std::string_view::npos ? "" : id.substr(colon + 1);
  if (kind == "sim") {
    const auto node = node_named(which);
    if (!node) {
      return usage_error(
          fmt::format("device {} is not known: write sim:gfx942 or sim:gfx950, or, of a node of up "
                      "to {} of them, sim:gfx942*8:3",
                      id, kMaxNode));
    }
    return open_simulated(*node);
  }
  int index = 0;
  if (colon != std::string_view::npos) {
    const auto [end, error] = std::from_chars(which.data(), which.data() + which.size(), index);
    if (error != std::errc() || end != which.data() + which.size() || index < 0) {
      return usage_error(fmt::format("device {} is not known: write hip or hip:0", id));
    }
  }
  return open_hip(index);
}

Result<std::unique_ptr<Device>> open_device(std::string_view id) {
  WEFT_ASSIGN(std::unique_ptr<Device> device, open_hip_device(id));
  return device;
}

std::vector<DeviceListing> list_devices() {
  std::vector<DeviceListing> result;
  const auto library = hip_library();
  const auto count = library ? device_count(**library) : Result<int>(library.error());
  if (!count) {
    result.push_back({.kind = "hip", .info = {}, .missing = count.error().message});
  }
  for (int i = 0; count && i < *count; ++i) {
    const auto device = open_hip(i);
    result.push_back({.kind = "hip",
                      .info = device ? (*device)->info() : DeviceInfo{},
                      .missing = device ? "" : device.error().message});
  }
  for (const Target target : kTargets) {
    const auto device = open_simulated({target});
    result.push_back({.kind = "sim",
                      .info = device ? (*device)->info() : DeviceInfo{},
                      .missing = device ? "" : device.error().message});
  }
  return result;
}

}  // namespace weft::cdna
