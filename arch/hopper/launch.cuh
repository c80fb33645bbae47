// Starting kernels on sm_90a from the host.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "base/result.h"

namespace weft::hopper {

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) {
    return {};
  }
  return device_error(std::string(what) + ": " + cudaGetErrorString(error));
}

/// How a kernel is started.
struct LaunchShape {
  int blocks = 0;
  int threads = 0;
  int cluster = 1;       ///< blocks in a cluster
  int shared_bytes = 0;  ///< dynamic
  cudaStream_t stream = nullptr;
};

/// The configuration of a launch and what it points to.
struct LaunchConfig {
  explicit LaunchConfig(const LaunchShape& shape) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    config.gridDim = shape.blocks;
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = shape.stream;
    config.attrs = &attribute;
    config.numAttrs = shape.cluster > 1 ? 1 : 0;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};
};

/// Starts a kernel, which gets the shared memory that `shape` says.
template <class... Params, class... Args>
Status launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, Args&&... args) {
  WEFT_TRY(cuda_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
      "a kernel's shared memory"));
  const LaunchConfig launch(shape);
  return cuda_status(
      cudaLaunchKernelEx(&launch.config, kernel, Params(std::forward<Args>(args))...),
      "a kernel's launch");
}

}  // namespace weft::hopper
