// NVIDIA GPUs through the CUDA runtime.
#pragma once

#include <memory>
#include <vector>

#include "arch/device.h"

namespace weft::hopper {

/// Errors (device): no driver, no such GPU, or one for which the kernels are not compiled.
Result<std::unique_ptr<Device>> open_device(int index);
std::vector<DeviceListing> list_devices();
/// The recording of a graph that a stream is in, by a number that no other recording has; 0: none.
uint64_t recording(Stream stream);
/// Whether GPU `index` is the calling thread's, because of Device::use() and nobody since.
bool in_use(int index);
/// Memory that is free on the calling thread's GPU. Error (device): it cannot be asked.
Result<int64_t> free_bytes();

}  // namespace weft::hopper
