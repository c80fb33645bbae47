// The resident kernels for several sequences of models whose attention is over latent rows.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel several_latents_kernel(int batch, bool general, bool traced) {
  return traced    ? kernel<true, true, true, true>(batch)
         : general ? kernel<false, true, true, true>(batch)
                   : kernel<false, false, true, true>(batch);
}

}  // namespace weft::hopper
