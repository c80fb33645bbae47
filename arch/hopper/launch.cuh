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
  int blocks = 0;  ///< along x
  int blocks_y = 1;
  int blocks_z = 1;
  int threads = 0;
  int cluster = 1;       ///< blocks in a cluster
  int shared_bytes = 0;  ///< dynamic
  /// It may begin while the kernel before it in the stream still runs, because it waits for that by
  /// itself (arch/hopper/dependent.cuh).
  bool overlaps = false;
  cudaStream_t stream = nullptr;
};

/// Lets launches of `kernel` on the current device have the shared memory that `shape` says, and
/// clusters of more than eight blocks. The driver is asked where this thread has not asked it yet:
/// to ask takes a part of what a launch takes.
Status allow_launches(const void* kernel, const LaunchShape& shape);

/// The configuration of a launch and what it points to.
struct LaunchConfig {
  explicit LaunchConfig(const LaunchShape& shape) {
    if (shape.cluster > 1) {
      cudaLaunchAttribute& attribute = add(cudaLaunchAttributeClusterDimension);
      attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    }
    if (shape.overlaps) {
      add(cudaLaunchAttributeProgrammaticStreamSerialization)
          .val.programmaticStreamSerializationAllowed = 1;
    }
    config.attrs = attributes;
    config.gridDim =
        dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y),
             static_cast<unsigned>(shape.blocks_z));
    config.blockDim = shape.threads;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = shape.stream;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};

 private:
  cudaLaunchAttribute& add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = id;
    return attribute;
  }
};

/// Starts a kernel, which gets the shared memory that `shape` says.
template <class... Params, class... Args>
Status launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, Args&&... args) {
  WEFT_TRY(allow_launches(reinterpret_cast<const void*>(kernel), shape));
  const LaunchConfig launch(shape);
  return cuda_status(
      cudaLaunchKernelEx(&launch.config, kernel, Params(std::forward<Args>(args))...),
      "a kernel's launch");
}

}  // namespace weft::hopper
