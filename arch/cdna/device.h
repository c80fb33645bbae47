// AMD GPUs through HIP's module API, and the simulator that answers it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "arch/device.h"

namespace weft::cdna {

/// "hip", "hip:1", "sim:gfx942", "sim:gfx950*8:3". Errors: usage (no such name), device (it is not
/// here).
Result<std::unique_ptr<Device>> open_device(std::string_view id);
std::vector<DeviceListing> list_devices();

}  // namespace weft::cdna
