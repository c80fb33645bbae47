// What bends a sum on sm_90a: the activations of FFNs and soft caps, in f32.
#pragma once

#include "base/activation.h"

namespace weft::hopper {

/// y of an activation f(x) = x / (1 + exp(-y)), which SiLU is by definition and GELU's tanh formula
/// by that of tanh: so it keeps its digits where tanh is near -1.
template <Activation kActivation>
__device__ __forceinline__ float exponent_of(float x) {
  static_assert(kActivation == Activation::silu || kActivation == Activation::gelu_tanh);
  return kActivation == Activation::silu ? x : 1.5957691216057308f * (x + 0.044715f * x * x * x);
}

/// To a few units in the last place.
__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      break;
    case Activation::silu:
      return x / (1 + expf(-exponent_of<Activation::silu>(x)));
    case Activation::gelu_tanh:
      return x / (1 + expf(-exponent_of<Activation::gelu_tanh>(x)));
  }
  return x;
}

/// c tanh(x / c); c = 0: x.
__device__ inline float cap_softly(float x, float cap) {
  return cap > 0 ? cap * tanhf(x / cap) : x;
}

/// tanh(x) to 4 units of 1.
__device__ inline float tanh_fast(float x) {
  const float e = __expf(-2 * fabsf(x));
  return copysignf(__fdividef(1 - e, 1 + e), x);
}

// For decode's kernels, of whose cycles each counts.

/// As activate(), to 1e-6 of the value.
__device__ inline float activate_fast(Activation activation, float x) {
  if (activation == Activation::none) {
    return x;
  }
  const float y = activation == Activation::gelu_tanh ? exponent_of<Activation::gelu_tanh>(x) : x;
  return __fdividef(x, 1.0f + __expf(-y));
}
/// As cap_softly() of a cap that there is, to 2e-7 of it.
__device__ inline float cap_fast(float x, float cap) { return cap * tanh_fast(__fdividef(x, cap)); }

/// Gate and up as one; `limit`: see ExpertsUpArgs. kFast: as decode's kernels have it.
template <bool kFast = true>
__device__ inline float gate_with(Activation activation, float limit, float gate, float up) {
  if (limit == 0) {
    return (kFast ? activate_fast(activation, gate) : activate(activation, gate)) * up;
  }
  // Comparisons that NaN fails keep it.
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  constexpr float kAlpha = 1.702f;
  const float e = kFast ? __expf(-kAlpha * gate) : expf(-kAlpha * gate);
  return gate / (1 + e) * (up + 1);
}

}  // namespace weft::hopper
