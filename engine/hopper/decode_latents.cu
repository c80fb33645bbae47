// The resident kernels for models whose attention is over latent rows: of one sequence.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel latents_kernel(bool general, bool traced) {
  return traced    ? kernel<true, 1, true, true, true>()
         : general ? kernel<false, 1, true, true, true>()
                   : kernel<false, 1, false, true, true>();
}

}  // namespace weft::hopper
