// The resident kernel: one launch runs many steps of a program.
#pragma once

#include <cuda_runtime.h>

#include "engine/hopper/launch.h"

namespace weft::hopper {

/// Shared memory that a launch asks for.
int64_t decode_shared_bytes(const Launch& launch);

/// Most dynamic shared memory of a CTA on sm_90.
inline constexpr int64_t kMostSharedBytes = 232448;

/// One CTA for each worker, all resident at once (cooperative launch).
cudaError_t launch_decode(const Launch& launch, cudaStream_t stream);

}  // namespace weft::hopper
