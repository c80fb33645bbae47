// How many clusters a GPU has room for.
#pragma once

#include "arch/hopper/launch.cuh"

namespace weft::hopper {

/// Clusters of such a launch that the current device holds at once. (Its groups of multiprocessors
/// differ in size, and from one chip to the next.) The driver is asked where this thread has not
/// asked it yet. Error (device): the driver's.
Result<int> resident_clusters(const void* kernel, const LaunchShape& shape);

}  // namespace weft::hopper
