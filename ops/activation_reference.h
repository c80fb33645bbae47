// The activations of FFNs in double, for the references of the operations that have one.
#pragma once

#include <cmath>
#include <numbers>

#include "base/activation.h"
#include "base/check.h"

namespace weft::reference {

inline double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  }
  WEFT_CHECK(!"an activation");
  return x;
}

/// No activation is steeper.
inline constexpr double kSteepestActivation = 1.13;

}  // namespace weft::reference
