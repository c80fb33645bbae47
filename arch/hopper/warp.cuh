// What a warp's lanes work out together.
#pragma once

namespace weft::hopper {

/// The sum over this lane and those below it.
__device__ inline int sum_up_to(int lane, int x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, x, distance);
    x += lane >= distance ? other : 0;
  }
  return x;
}

}  // namespace weft::hopper
