// What a GPU's memory can do at most, measured: the floor that decode figures are printed with.
#pragma once

#include "arch/device.h"

namespace weft::hopper {

/// Bytes per second that a resident kernel reads from `bytes` of memory at `data` with bulk copies
/// into shared memory, each SM a contiguous share; the median of several passes. `bytes` should be
/// many times the L2 cache. Error (device): a launch failed.
Result<double> read_bandwidth(Device& device, const void* data, size_t bytes);

}  // namespace weft::hopper
