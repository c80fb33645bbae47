// The resident kernel for models whose attention is over latent rows.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel latents_kernel(bool traced) {
  return traced ? kernel<true, 1, true, true, true>() : kernel<false, 1, true, true, true>();
}

}  // namespace weft::hopper
