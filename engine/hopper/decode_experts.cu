// The resident kernels for models with mixtures of experts: of one sequence.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel experts_kernel(bool general, bool traced) {
  return traced    ? kernel<true, 1, true, true>()
         : general ? kernel<false, 1, true, true>()
                   : kernel<false, 1, false, true>();
}

}  // namespace weft::hopper
