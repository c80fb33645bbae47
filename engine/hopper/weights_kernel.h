// Weights on the device: made from a seed, and packed for the resident kernel.
#pragma once

#include <cuda_runtime.h>

#include "engine/hopper/lower.h"
#include "model/random_weights.h"

namespace weft::hopper {

/// Writes all elements of a tensor in bf16, f16 or f32 as fill_random (model/random_weights.h)
/// does. `elements` is a multiple of 4.
cudaError_t launch_fill_random(const RandomTensor& tensor, DType type, int64_t elements, void* out,
                               cudaStream_t stream);

/// Packs units as ops/linear/hopper.cuh says. `jobs` is on the device, and `refused`, a word for
/// each of the program's operations, zero before: not zero where a unit cannot be compressed.
cudaError_t launch_pack(const PackJob* jobs, int64_t count, const char* arena, char* packed,
                        uint32_t* refused, cudaStream_t stream);

}  // namespace weft::hopper
