// NVIDIA GPUs through the CUDA runtime.
#pragma once

#include <memory>
#include <vector>

#include "arch/device.h"

namespace weft::hopper {

/// Errors (device): no driver, no such GPU, or one for which the kernels are not compiled.
Result<std::unique_ptr<Device>> open_device(int index);
std::vector<DeviceListing> list_devices();

}  // namespace weft::hopper
