// RoPE of latent rows and their queries.
#pragma once

namespace weft::hopper {

/// Pairs of neighbours, each by its angle: pair i of what RoPE turns.
__device__ inline float2 turn(float2 x, float cosine, float sine) {
  return {x.x * cosine - x.y * sine, x.y * cosine + x.x * sine};
}

}  // namespace weft::hopper
