#include "arch/device.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "arch/cdna/device.h"
#include "arch/hopper/device.h"
#include "base/built.h"

namespace weft {
namespace {

constexpr std::string_view kNoCuda =
    "this build has no CUDA kernels (nvcc was not there when it was configured)";

/// The i of "cuda:i"; 0 of "cuda".
std::optional<int> index_of(std::string_view id) {
  const size_t colon = id.find(':');
  if (colon == std::string_view::npos) {
    return 0;
  }
  const std::string_view digits = id.substr(colon + 1);
  int index = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  return error == std::errc() && end == digits.data() + digits.size() && index >= 0
             ? std::optional(index)
             : std::nullopt;
}

}  // namespace

std::string_view name_of(Arch arch) {
  constexpr std::string_view kNames[] = {"cpu", "hopper", "cdna"};
  return kNames[static_cast<int>(arch)];
}

std::string_view name_of(Peak peak) {
  constexpr std::string_view kNames[] = {"f32", "bf16", "fp8"};
  return kNames[static_cast<int>(peak)];
}

Result<std::unique_ptr<Device>> open_device(std::string_view id) {
  const std::string_view kind = id.substr(0, id.find(':'));
  if (kind == "cuda") {
    const auto index = index_of(id);
    if (!index) {
      return usage_error(fmt::format("device {} is not known: write cuda or cuda:0", id));
    }
    if constexpr (built::kCuda) {
      return hopper::open_device(*index);
    }
    return device_error(fmt::format("device {} cannot be had: {}", id, kNoCuda));
  }
  if (kind == "hip" || kind == "sim") {
    if constexpr (built::kCdna) {
      return cdna::open_device(id);
    }
    return device_error(fmt::format("device {} cannot be had: this build has no AMD kernels", id));
  }
  return usage_error(fmt::format("device {} is not known (see `weft devices`)", id));
}

std::vector<DeviceListing> list_devices() {
  std::vector<DeviceListing> result;
  if constexpr (built::kCuda) {
    result = hopper::list_devices();
  } else {
    DeviceListing& cuda = result.emplace_back();
    cuda.kind = "cuda";
    cuda.missing = kNoCuda;
  }
  if constexpr (built::kCdna) {
    for (DeviceListing& each : cdna::list_devices()) {
      result.push_back(std::move(each));
    }
  }
  return result;
}

}  // namespace weft
