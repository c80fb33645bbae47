// The resident kernel for several sequences of models with mixtures of experts.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel several_experts_kernel(int batch, bool general, bool traced) {
  return traced    ? kernel<true, true, true>(batch)
         : general ? kernel<false, true, true>(batch)
                   : kernel<false, false, true>(batch);
}

}  // namespace weft::hopper
