#include "capi/torch_abi.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace weft::torch_abi {

Result<Torch> look_up() {
  void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    return device_error("PyTorch is not loaded in this process: import torch first");
  }
  Torch torch;
  const char* missing = nullptr;
#define WEFT_TORCH_LOOK_UP(result, name, parameters)                          \
  torch.name = reinterpret_cast<decltype(torch.name)>(dlsym(library, #name)); \
  missing = torch.name == nullptr ? #name : missing;
  WEFT_TORCH_FUNCTIONS(WEFT_TORCH_LOOK_UP)
  if (missing != nullptr) {
    return device_error(fmt::format(
        "this PyTorch has no {}: version 2.8 or later is needed for torch.ops.weft", missing));
  }
  for (const char* name : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    if (void* gpu = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {
      library = gpu;
    }
  }
  WEFT_TORCH_GPU_FUNCTIONS(WEFT_TORCH_LOOK_UP)
#undef WEFT_TORCH_LOOK_UP
  return torch;
}

}  // namespace weft::torch_abi
