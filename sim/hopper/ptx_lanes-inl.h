// Instructions that do the same in every lane: a function of values, applied to a warp's registers.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {

/// How a value lies in a lane of a register: in 4 bytes, or 8.
template <class T>
using Bits = std::conditional_t<(sizeof(T) > 4), uint64_t, uint32_t>;

template <class T>
inline T from_bits(Bits<T> bits) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits);
  } else {
    return std::bit_cast<T>(bits);
  }
}
template <class T>
inline Bits<T> to_bits(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return std::bit_cast<Bits<T>>(value);
  }
}

/// each_lane(), faster where all are meant.
template <class F>
inline void every_lane(uint32_t mask, F&& f) {
  if (mask == ~0u) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      f(i);
    }
  } else {
    each_lane(mask, f);
  }
}

template <auto kFunction, class D, class... A, size_t... I>
inline void apply(Warp& warp, const Instruction& in, uint32_t mask, std::index_sequence<I...>) {
  Bits<D>* d = warp.out<Bits<D>>(in.o[0]);
  const auto one = [&](auto i, const auto*... a) {
    d[i] = to_bits<D>(static_cast<D>(kFunction(from_bits<A>(a[i])...)));
  };
  const auto all = [&](const auto*... a) {
    if (mask == ~0u) {
#pragma GCC ivdep
      for (int i = 0; i < kLanes; ++i) {
        one(i, a...);
      }
    } else {
      each_lane(mask, [&](uint32_t i) { one(i, a...); });
    }
  };
  all(warp.in<Bits<A>>(in.o[I + 1])...);
}

/// d = f(a...), of a D and As.
template <auto kFunction, class D, class... A>
Step lanewise(Warp& warp, const Instruction& in, uint32_t mask) {
  apply<kFunction, D, A...>(warp, in, mask, std::index_sequence_for<A...>());
  return Step::next;
}

}  // namespace weft::ptx
