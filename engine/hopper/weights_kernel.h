// Weights on the device: made from a seed, and packed for the resident kernel.
#pragma once

#include <cuda_runtime.h>

#include "engine/hopper/lower.h"
#include "model/random_weights.h"

namespace weft::hopper {

/// Writes all elements of a tensor in bf16, f16, f32 or e4m3fn as fill_random
/// (model/random_weights.h) does. `elements` is a multiple of 4.
cudaError_t launch_fill_random(const RandomTensor& tensor, DType type, int64_t elements, void* out,
                               cudaStream_t stream);

/// Packs units as ops/linear/hopper.cuh says. `jobs` is on the device, and `refused`, a word for
/// each of the program's operations, zero before: not zero where a unit cannot be compressed.
cudaError_t launch_pack(const PackJob* jobs, int64_t count, const char* arena, char* packed,
                        uint32_t* refused, cudaStream_t stream);

/// Writes codes [rows, columns] in e4m3fn times their scales, which `grid` says, as bf16 or f32
/// (`type`) to `out`, contiguous: weights that the stream's next kernel may read before it waits
/// for earlier ones (arch/hopper/dependent.cuh). `columns` is a multiple of 8.
cudaError_t launch_widen(const void* codes, const float* scales, const ScaleGrid& grid,
                         int64_t rows, int64_t columns, DType type, void* out, cudaStream_t stream);

/// Puts the weights of units back to where they were packed from, as their form's unpack()
/// (ops/linear/forms/) does. `jobs` is on the device.
cudaError_t launch_unpack(const PackJob* jobs, int64_t count, const char* packed, char* arena,
                          cudaStream_t stream);

}  // namespace weft::hopper
