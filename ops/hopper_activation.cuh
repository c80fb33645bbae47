// What bends a sum on sm_90a: the activations of FFNs and soft caps, in f32.
#pragma once

#include "base/activation.h"

namespace weft::hopper {

/// tanh(x) to 4 units of 1.
__device__ inline float tanh_fast(float x) {
  const float e = __expf(-2 * fabsf(x));
  return copysignf(__fdividef(1 - e, 1 + e), x);
}

/// Exact to a few units in the last place.
__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::silu:
      return x / (1 + expf(-x));
    case Activation::gelu_tanh:
      // x / 2 (1 + tanh(y)) = x / (1 + exp(-2 y)), which keeps its digits where tanh(y) is near -1.
      return x / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

/// To the digits of bf16, for results that are rounded to it.
__device__ inline float activate_fast(Activation activation, float x) {
  const float y =
      activation == Activation::gelu_tanh ? 1.5957691216057308f * (x + 0.044715f * x * x * x) : x;
  return activation == Activation::none ? x : __fdividef(x, 1 + __expf(-y));
}

/// c tanh(x / c); c = 0: x.
__device__ inline float cap_softly(float x, float cap) {
  return cap > 0 ? cap * tanhf(x / cap) : x;
}

}  // namespace weft::hopper
