// bf16 weights in 12 bits each, without loss, for a resident kernel that is bound by the bytes it
// reads (hopper_layout.h, engine/cdna/layout.h). What a weight has that cannot be foreseen is its
// sign and its mantissa; the exponents of a column of weights lie close together. So a column has a
// window of 16 exponents, a weight is its sign, its mantissa and its place in the window, and the
// few weights beside the window (about one in ten thousand where weights are normally distributed)
// are listed apart. The kernel multiplies with weights whose exponents are moved to one fixed
// window, and scales a column's sums by the power of two that moves them back: exact, both.
//
// Plain functions of numbers, for the kernel that compresses, the one that multiplies, and tests.
#pragma once

#include <cstdint>

namespace weft::windowed {

inline constexpr int kWindow = 16;           ///< exponents in a window
inline constexpr int kWindowExponent = 112;  ///< the window's first where weights are multiplied
static_assert(kWindowExponent % kWindow == 0);
inline constexpr uint32_t kWindowBits = uint32_t{kWindowExponent} << 7;  ///< of a bf16

/// A column's first exponent may be these: what scales its sums is then a normal f32.
inline constexpr int kLeastFirst = 1;
inline constexpr int kMostFirst = 239;

constexpr int bf16_exponent(uint32_t weight) { return static_cast<int>(weight >> 7 & 0xff); }

constexpr bool in_window(uint32_t weight, int first) {
  return bf16_exponent(weight) >= first && bf16_exponent(weight) < first + kWindow;
}
/// The first exponent of the window that has most of a column's weights; 0: all are zero. `count`:
/// [256], of exponents, of 0 zeros alone.
constexpr int best_window(const int* count, int weights) {
  if (count[0] == weights) {
    return 0;
  }
  int in = 0;
  for (int e = kLeastFirst; e < kLeastFirst + kWindow; ++e) {
    in += count[e];
  }
  int best = kLeastFirst;
  for (int first = kLeastFirst + 1, most = in; first <= kMostFirst; ++first) {
    in += count[first + kWindow - 1] - count[first - 1];
    if (in > most) {
      most = in;
      best = first;
    }
  }
  return best;
}

/// The bf16 that stands for one in the window [first, first + 16): with its exponent in the fixed
/// window.
constexpr uint32_t move_to_window(uint32_t weight, int first) {
  return (weight & 0x807fu) | static_cast<uint32_t>(bf16_exponent(weight) - first) << 7 |
         kWindowBits;
}
/// The factor of a column's sums, as the exponent of an f32 (its bits << 23).
constexpr uint32_t scale_exponent(int first) {
  return static_cast<uint32_t>(first - kWindowExponent + 127);
}
/// Of a column that is all zeros: the f32 0.
inline constexpr uint32_t kZeroScale = 0;

/// What a weight beside the window is where weights are multiplied, and whether a bf16 can say it
/// (zero always can). In the window's place of such a weight stands kWindowBits, 2^-15.
constexpr bool can_be_listed(uint32_t weight, int first) {
  const int exponent = bf16_exponent(weight);
  const int moved = exponent - first + kWindowExponent;
  return (weight & 0x7fffu) == 0 || (exponent > 0 && exponent < 255 && moved > 0 && moved < 255);
}
constexpr uint32_t move_listed(uint32_t weight, int first) {
  if ((weight & 0x7fffu) == 0) {
    return weight;
  }
  return (weight & 0x807fu) | static_cast<uint32_t>(bf16_exponent(weight) - first + kWindowExponent)
                                  << 7;
}

/// The weight that one in the window or of the list was moved from, by its column's scale. Of a
/// column of zeros signs are not kept.
constexpr uint32_t move_back(uint32_t moved, uint32_t scale) {
  if (scale == kZeroScale || (moved & 0x7fffu) == 0) {
    return scale == kZeroScale ? 0 : moved;
  }
  const int exponent = bf16_exponent(moved) + static_cast<int>(scale) - 127;
  return (moved & 0x807fu) | static_cast<uint32_t>(exponent) << 7;
}

/// The two parts of a moved weight: a low byte (mantissa, the exponent's last bit) and four bits
/// (sign, the exponent's three next ones).
constexpr uint32_t low_part(uint32_t moved) { return moved & 0xffu; }
/// Where a bf16 has the other four.
inline constexpr uint32_t kHighPart = 0x8700u;

// Eight weights, as four pairs, have their high parts in one word: those of the first four where
// the word would have their high bytes, one after the other, those of the other four likewise, but
// rotated to the left by four bits. No two take the same bits.
inline constexpr uint32_t kAllBytes = 0x01010101u;
inline constexpr uint32_t kHighParts = kAllBytes * (kHighPart >> 8);
inline constexpr uint32_t kWindowBytes = kAllBytes * (kWindowBits >> 8);
constexpr uint32_t rotate_left(uint32_t x, int bits) {
  return x << (bits & 31) | x >> (-bits & 31);
}
/// `pair`: two moved weights, the first in the low half; number: 0 to 3.
constexpr uint32_t high_parts(uint32_t pair, int number) {
  const uint32_t bytes = (pair >> 8 & 0xffu) | (pair >> 16 & 0xff00u);
  return rotate_left(bytes << (number % 2 * 16) & kHighParts, number / 2 * 4);
}
/// The high bytes of four weights: of the first two pairs (half 0), or of the others (1).
constexpr uint32_t high_bytes(uint32_t high, int half) {
  return (rotate_left(high, -4 * half) & kHighParts) | kWindowBytes;
}

/// The pair again, of its high parts' word and its two low bytes.
constexpr uint32_t join_parts(uint32_t high, int number, uint32_t low_bytes) {
  const uint32_t bytes = high_bytes(high, number / 2) >> (number % 2 * 16);
  return (low_bytes & 0xffu) | (bytes & 0xffu) << 8 | (low_bytes & 0xff00u) << 8 |
         (bytes & 0xff00u) << 16;
}

/// A weight of the list: place in the slice (row of the operand A, k), and what it is moved to.
constexpr uint32_t listed(int row, int k, uint32_t moved) {
  return 0x80000000u | static_cast<uint32_t>(row) << 24 | static_cast<uint32_t>(k) << 16 | moved;
}

}  // namespace weft::windowed
