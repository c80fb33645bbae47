#include "sim/buffer_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/number.h"

namespace weft::sim {
namespace {

struct Layout {
  uint8_t components;
  std::array<uint8_t, 4> bits;
};
/// By DFMT. Names in the manual go from the highest bits down.
constexpr Layout kLayouts[16] = {
    {0, {}},                // invalid
    {1, {8}},               // 8
    {1, {16}},              // 16
    {2, {8, 8}},            // 8_8
    {1, {32}},              // 32
    {2, {16, 16}},          // 16_16
    {3, {11, 11, 10}},      // 10_11_11
    {3, {10, 11, 11}},      // 11_11_10
    {4, {2, 10, 10, 10}},   // 10_10_10_2
    {4, {10, 10, 10, 2}},   // 2_10_10_10
    {4, {8, 8, 8, 8}},      // 8_8_8_8
    {2, {32, 32}},          // 32_32
    {4, {16, 16, 16, 16}},  // 16_16_16_16
    {3, {32, 32, 32}},      // 32_32_32
    {4, {32, 32, 32, 32}},  // 32_32_32_32
    {0, {}},                // reserved
};

uint32_t mask_of(int width) { return width == 32 ? ~0U : (1U << width) - 1; }

/// Floats of 10 and 11 bits have no sign and five bits of exponent, as binary16.
float small_float(uint32_t code, int width) {
  return to_float(f16{static_cast<uint16_t>(code << (15 - width))});
}
uint32_t to_small_float(float x, int width) {
  const int dropped = 15 - width;
  if (!(x > 0)) {
    return x == x ? 0 : mask_of(width);  // negative numbers are zero, NaN stays
  }
  // Once rounded to binary16, then to the few bits: exact ties are those of binary16 already.
  const uint32_t half = to_f16(x).bits;
  const uint32_t odd = half >> dropped & 1;
  return std::min((half + (1U << (dropped - 1)) - 1 + odd) >> dropped, 31U << (width - 5));
}

}  // namespace

BufferFormat buffer_format(uint32_t data, uint32_t numbers, uint32_t select) {
  BufferFormat format;
  const Layout& layout = kLayouts[data & 15];
  format.numbers = static_cast<Numbers>(numbers & 7);
  format.components = layout.components;
  format.bits = layout.bits;
  int bits = 0;
  for (const uint8_t each : layout.bits) {
    bits += each;
  }
  format.bytes = bits / 8;
  for (size_t k = 0; k < 4; ++k) {
    format.select[k] = static_cast<uint8_t>(select >> 3 * k & 7);
  }
  return format;
}

uint32_t BufferFormat::decode(uint32_t code, int width, bool half) const {
  const auto of_sign = static_cast<int32_t>(code << (32 - width)) >> (32 - width);
  const auto as_float = [&](float x) {
    return half ? uint32_t{to_f16(x).bits} : std::bit_cast<uint32_t>(x);
  };
  switch (numbers) {
    case Numbers::unorm:
      return as_float(static_cast<float>(code / static_cast<double>(mask_of(width))));
    case Numbers::snorm:
      return as_float(
          static_cast<float>(std::max(-1.0, of_sign / static_cast<double>(mask_of(width - 1)))));
    case Numbers::uscaled:
      return as_float(static_cast<float>(code));
    case Numbers::sscaled:
      return as_float(static_cast<float>(of_sign));
    case Numbers::sint:
      return half ? static_cast<uint16_t>(of_sign) : static_cast<uint32_t>(of_sign);
    case Numbers::floating:
      if (width == 32) {
        return as_float(std::bit_cast<float>(code));
      }
      if (width == 16) {
        return half ? code : as_float(to_float(f16{static_cast<uint16_t>(code)}));
      }
      if (width == 10 || width == 11) {
        return as_float(small_float(code, width));
      }
      [[fallthrough]];  // there are no floats of that size
    default:
      return half ? code & 0xffff : code;
  }
}

uint32_t BufferFormat::encode(uint32_t value, int width, bool half) const {
  const float x = half ? to_float(f16{static_cast<uint16_t>(value)}) : std::bit_cast<float>(value);
  const auto of_sign = half ? int32_t{static_cast<int16_t>(value)} : static_cast<int32_t>(value);
  const uint32_t most = mask_of(width);
  const uint32_t most_signed = mask_of(width - 1);
  const auto rounded = [&](double number, double low, double high) {
    const double bounded = number == number ? std::clamp(number, low, high) : 0;
    return static_cast<uint32_t>(static_cast<int64_t>(std::nearbyint(bounded))) & most;
  };
  switch (numbers) {
    case Numbers::unorm:
      return rounded(std::clamp(static_cast<double>(x), 0.0, 1.0) * most, 0, most);
    case Numbers::snorm:
      return rounded(std::clamp(static_cast<double>(x), -1.0, 1.0) * most_signed,
                     -static_cast<double>(most_signed), most_signed);
    case Numbers::uscaled:
      return rounded(x, 0, most);
    case Numbers::sscaled:
      return rounded(x, -static_cast<double>(most_signed) - 1, most_signed);
    case Numbers::sint:
      return rounded(of_sign, -static_cast<double>(most_signed) - 1, most_signed);
    case Numbers::floating:
      if (width == 32) {
        return std::bit_cast<uint32_t>(x);
      }
      if (width == 16) {
        return half ? value : to_f16(x).bits;
      }
      if (width == 10 || width == 11) {
        return to_small_float(x, width);
      }
      [[fallthrough]];
    default:
      return std::min(value, most);
  }
}

void BufferFormat::load(const void* from, bool half, uint32_t (&values)[4]) const {
  uint32_t words[4] = {};
  std::memcpy(words, from, static_cast<size_t>(bytes));
  const bool integers = numbers == Numbers::uint || numbers == Numbers::sint;
  const uint32_t one = integers ? 1 : half ? 0x3c00 : 0x3f800000;
  uint32_t own[4] = {0, 0, 0, one};
  int at = 0;
  for (int k = 0; k < components; ++k) {
    const int width = bits[static_cast<size_t>(k)];
    own[k] = decode(words[at / 32] >> (at % 32) & mask_of(width), width, half);
    at += width;
  }
  for (size_t k = 0; k < 4; ++k) {
    values[k] = select[k] >= 4 ? own[select[k] - 4] : select[k] == 1 ? one : 0;
  }
}

void BufferFormat::store(void* to, bool half, const uint32_t (&values)[4], int count) const {
  uint32_t words[4] = {};
  int at = 0;
  for (int k = 0; k < components; ++k) {
    const int width = bits[static_cast<size_t>(k)];
    const auto place = std::find(select.begin(), select.end(), 4 + k) - select.begin();
    if (place < count) {
      words[at / 32] |= encode(values[place], width, half) << (at % 32);
    }
    at += width;
  }
  std::memcpy(to, words, static_cast<size_t>(bytes));
}

}  // namespace weft::sim
