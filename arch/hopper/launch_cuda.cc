#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "arch/hopper/launch.cuh"

namespace weft::hopper {

Status allow_shared_bytes(const void* kernel, int bytes) {
  if (bytes == 0) {
    return {};
  }
  int device = 0;
  WEFT_TRY(cuda_status(cudaGetDevice(&device), "the current device"));
  thread_local std::map<std::pair<const void*, int>, int> allowed;
  int& most = allowed[{kernel, device}];
  if (bytes <= most) {
    return {};
  }
  WEFT_TRY(
      cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                  "a kernel's shared memory"));
  most = bytes;
  return {};
}

}  // namespace weft::hopper
