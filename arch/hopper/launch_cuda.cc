#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "arch/hopper/launch.cuh"

namespace weft::hopper {

Status allow_launches(const void* kernel, const LaunchShape& shape) {
  constexpr int kPortable = 8;  // blocks of a cluster that every GPU with clusters takes
  if (shape.shared_bytes == 0 && shape.cluster <= kPortable) {
    return {};
  }
  int device = 0;
  WEFT_TRY(cuda_status(cudaGetDevice(&device), "the current device"));
  struct Allowed {
    int bytes = 0;
    bool large = false;
  };
  thread_local std::map<std::pair<const void*, int>, Allowed> allowed;
  Allowed& of = allowed[{kernel, device}];
  if (shape.shared_bytes > of.bytes) {
    WEFT_TRY(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              shape.shared_bytes),
                         "a kernel's shared memory"));
    of.bytes = shape.shared_bytes;
  }
  if (shape.cluster > kPortable && !of.large) {
    WEFT_TRY(
        cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                    "a kernel's clusters of more than eight blocks"));
    of.large = true;
  }
  return {};
}

}  // namespace weft::hopper
