// The resident kernel for the models that most are, and the choice among kernels.
#include "engine/hopper/decode_kernel.h"

#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {
namespace {

/// One that traces is only made for all models.
Kernel kernel_of(const Launch& launch) {
  const int batch = batch_of(launch.shape.sequences);
  const bool traced = launch.trace != nullptr;
  const bool general = launch.shape.general;
  return launch.latents         ? (batch == 1 ? latents_kernel(general, traced)
                                              : several_latents_kernel(batch, general, traced))
         : launch.shape.experts ? (batch == 1 ? experts_kernel(general, traced)
                                              : several_experts_kernel(batch, general, traced))
         : general || traced    ? general_kernel(batch, traced)
                                : kernel<false, false>(batch);
}

}  // namespace

int64_t decode_shared_bytes(const Launch& launch) { return kernel_of(launch).shared_bytes(launch); }

cudaError_t launch_decode(const Launch& launch, cudaStream_t stream) {
  const Kernel kernel = kernel_of(launch);
  const auto bytes = static_cast<size_t>(kernel.shared_bytes(launch));
  const cudaError_t error = cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) {
    return error;
  }
  void* arguments[] = {const_cast<Launch*>(&launch)};
  return cudaLaunchCooperativeKernel(kernel.function, dim3(static_cast<unsigned>(launch.workers)),
                                     dim3(kThreads), arguments, bytes, stream);
}

}  // namespace weft::hopper
