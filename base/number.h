// Number formats: bf16 and IEEE binary16 as storage types, and the DType tag that names a format.
// Conversions round to nearest, ties to even; NaN stays NaN; overflow goes to infinity.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

/// bfloat16: the upper half of an IEEE binary32 (1 sign, 8 exponent, 7 mantissa bits).
struct bf16 {
  uint16_t bits = 0;
};

/// IEEE 754 binary16 (1 sign, 5 exponent, 10 mantissa bits).
struct f16 {
  uint16_t bits = 0;
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2, "storage types are laid over file bytes");

constexpr float to_float(float x) { return x; }
constexpr float to_float(bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}

constexpr float to_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1f;
  const uint32_t mantissa = x.bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in binary32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

constexpr bf16 to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffff) > 0x7f800000) {  // NaN: keep it quiet and not rounded into infinity
    return {static_cast<uint16_t>((u >> 16) | 0x40)};
  }
  return {static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

constexpr f16 to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  const uint32_t magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return {static_cast<uint16_t>(sign | 0x7e00)};
  }
  if (magnitude >= 0x477ff000) {  // 65520 and above round to infinity
    return {static_cast<uint16_t>(sign | 0x7c00)};
  }
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal; adding 0.5 aligns and rounds to even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

/// A storage format. The formats of one byte are in base/fp8.h.
enum class DType : uint8_t { f32, bf16, f16, e4m3fn, e4m3fnuz };

constexpr bool is_fp8(DType type) { return type == DType::e4m3fn || type == DType::e4m3fnuz; }

constexpr size_t size_of(DType type) { return type == DType::f32 ? 4 : is_fp8(type) ? 1 : 2; }

/// The name that safetensors headers use ("F32", "BF16", "F16", "F8_E4M3"; they have none for
/// fnuz).
constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f16:
      return "F16";
    case DType::e4m3fn:
      return "F8_E4M3";
    case DType::e4m3fnuz:
      return "F8_E4M3FNUZ";
  }
  return "?";
}

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::f16;
};

}  // namespace weft
