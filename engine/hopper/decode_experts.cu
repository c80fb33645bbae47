// The resident kernel for models with mixtures of experts.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel experts_kernel(bool traced) {
  return traced ? kernel<true, 1, true, true>() : kernel<false, 1, true, true>();
}

}  // namespace weft::hopper
