// Formats of typed buffers: what buffer_load_format, tbuffer_load_format and their stores make of
// the bytes in memory. CDNA 3 manual, sections 9.1.3 and 9.1.4.
#pragma once

#include <array>
#include <cstdint>

namespace weft::sim {

/// Numeric formats, as encoded (NFMT).
enum class Numbers : uint8_t {
  unorm,    ///< 0 to all ones: 0 to 1
  snorm,    ///< the most negative number, and the next: -1
  uscaled,  ///< integers as floats
  sscaled,
  uint,
  sint,
  reserved,
  floating
};

/// DST_SEL of a descriptor that gives every component its own place.
inline constexpr uint32_t kOwnComponents = 4 | 5 << 3 | 6 << 6 | 7 << 9;

/// Where the components of an element lie: component 0 in the lowest bits.
struct BufferFormat {
  Numbers numbers = Numbers::uint;
  int components = 0;
  std::array<uint8_t, 4> bits{};
  int bytes = 0;                              ///< of an element; 0: the format is invalid
  std::array<uint8_t, 4> select{4, 5, 6, 7};  ///< of a result: 0: zero, 1: one, 4-7: a component

  /// The four values of an element, f32 or integers; with `half`, f16 or the low 16 bits of
  /// integers. A component that memory does not have is 0, the fourth 1.
  void load(const void* from, bool half, uint32_t (&values)[4]) const;
  /// Writes an element whole: a component for which there is no value is 0. What is too large for
  /// its bits becomes the nearest that fits; floats round to nearest.
  void store(void* to, bool half, const uint32_t (&values)[4], int count) const;

 private:
  uint32_t decode(uint32_t code, int width, bool half) const;
  uint32_t encode(uint32_t value, int width, bool half) const;
};

/// `data`, `numbers`, `select`: DFMT, NFMT and DST_SEL as encoded.
BufferFormat buffer_format(uint32_t data, uint32_t numbers, uint32_t select);

}  // namespace weft::sim
