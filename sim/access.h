// What LDS and vector memory instructions share: narrow loads and the arithmetic of atomics.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/number.h"

namespace weft::sim {

/// What a load or store moves in a lane. `low`, `high`: a half of the register; the other is kept.
enum class Moved : uint8_t {
  u8,
  s8,
  u16,
  s16,
  words,
  u8_low,
  u8_high,
  s8_low,
  s8_high,
  b16_low,
  b16_high
};

template <class T>
T load_as(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// A register, `old` before, after a load of less than a word.
inline uint32_t loaded(Moved what, const void* from, uint32_t old) {
  const auto low = [&](uint32_t half) { return (old & 0xffff0000) | (half & 0xffff); };
  const auto high = [&](uint32_t half) { return (old & 0xffff) | half << 16; };
  const auto extended = [](auto value) { return static_cast<uint32_t>(int32_t{value}); };
  switch (what) {
    case Moved::u8:
      return load_as<uint8_t>(from);
    case Moved::s8:
      return extended(load_as<int8_t>(from));
    case Moved::u16:
      return load_as<uint16_t>(from);
    case Moved::s16:
      return extended(load_as<int16_t>(from));
    case Moved::u8_low:
      return low(load_as<uint8_t>(from));
    case Moved::u8_high:
      return high(load_as<uint8_t>(from));
    case Moved::s8_low:
      return low(extended(load_as<int8_t>(from)));
    case Moved::s8_high:
      return high(extended(load_as<int8_t>(from)));
    case Moved::b16_low:
      return low(load_as<uint16_t>(from));
    case Moved::b16_high:
      return high(load_as<uint16_t>(from));
    case Moved::words:
      break;
  }
  return load_as<uint32_t>(from);
}

/// Integer atomics on T, S its signed twin: the new value from the old one and the operand.
template <class T, class S>
struct AtomicOf {
  static constexpr auto swap = [](T, T x) { return x; };
  static constexpr auto add = [](T old, T x) { return old + x; };
  static constexpr auto sub = [](T old, T x) { return old - x; };
  static constexpr auto smin = [](T old, T x) {
    return static_cast<S>(x) < static_cast<S>(old) ? x : old;
  };
  static constexpr auto smax = [](T old, T x) {
    return static_cast<S>(x) > static_cast<S>(old) ? x : old;
  };
  static constexpr auto umin = [](T old, T x) { return x < old ? x : old; };
  static constexpr auto umax = [](T old, T x) { return x > old ? x : old; };
  static constexpr auto bit_and = [](T old, T x) { return old & x; };
  static constexpr auto bit_or = [](T old, T x) { return old | x; };
  static constexpr auto bit_xor = [](T old, T x) { return old ^ x; };
  static constexpr auto inc = [](T old, T x) { return old >= x ? T{0} : old + 1; };
  static constexpr auto dec = [](T old, T x) { return old == 0 || old > x ? x : old - 1; };
};
using Atomic32 = AtomicOf<uint32_t, int32_t>;
using Atomic64 = AtomicOf<uint64_t, int64_t>;

/// Two 16-bit floats, each sum rounded to nearest.
inline constexpr auto kAtomicAddF16 = [](uint32_t old, uint32_t x) {
  const auto add = [](uint32_t a, uint32_t b) {
    return uint32_t{
        to_f16(to_float(f16{static_cast<uint16_t>(a)}) + to_float(f16{static_cast<uint16_t>(b)}))
            .bits};
  };
  return add(old & 0xffff, x & 0xffff) | add(old >> 16, x >> 16) << 16;
};
inline constexpr auto kAtomicAddBf16 = [](uint32_t old, uint32_t x) {
  const auto add = [](uint32_t a, uint32_t b) {
    return uint32_t{
        to_bf16(to_float(bf16{static_cast<uint16_t>(a)}) + to_float(bf16{static_cast<uint16_t>(b)}))
            .bits};
  };
  return add(old & 0xffff, x & 0xffff) | add(old >> 16, x >> 16) << 16;
};

/// Compares and swaps until f's value went in; the old value. The address is a multiple of T's
/// size.
template <class T, class F>
T update(uint64_t address, F f) {
  auto* p = reinterpret_cast<T*>(address);
  T old = __atomic_load_n(p, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(p, &old, f(old), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
  return old;
}

}  // namespace weft::sim
