// The resident kernel for models that have what few have (ModelShape::general), and those that
// trace.
#include "engine/hopper/decode/kernel.cuh"

namespace weft::hopper {

Kernel general_kernel(int batch, bool traced) {
  return traced ? kernel<true, true>(batch) : kernel<false, true>(batch);
}

}  // namespace weft::hopper
