#include "arch/hopper/clusters.h"

#include <map>
#include <utility>

namespace weft::hopper {

Result<int> resident_clusters(const void* kernel, const LaunchShape& shape) {
  int device = 0;
  WEFT_TRY(cuda_status(cudaGetDevice(&device), "the current device"));
  thread_local std::map<std::pair<const void*, int>, int> known;
  int& clusters = known[{kernel, device}];
  if (clusters == 0) {
    WEFT_TRY(allow_launches(kernel, shape));
    const LaunchConfig launch(shape);
    WEFT_TRY(cuda_status(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch.config),
                         "how many clusters of a kernel there can be"));
  }
  return clusters;
}

}  // namespace weft::hopper
