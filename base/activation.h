// The functions that stand between an FFN's two products.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

enum class Activation : uint8_t {
  none,
  silu,       ///< x / (1 + exp(-x))
  gelu_tanh,  ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): GELU by its tanh formula
};

constexpr std::string_view name_of(Activation activation) {
  constexpr std::string_view kNames[] = {"none", "silu", "gelu_tanh"};
  return kNames[static_cast<int>(activation)];
}

}  // namespace weft
