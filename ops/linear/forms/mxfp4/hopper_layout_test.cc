#include "ops/linear/forms/mxfp4/hopper_layout.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "base/fp8.h"
#include "base/number.h"

namespace weft::hopper {
namespace {

TEST(HopperMx, EveryCodeComesBackInEveryPlace) {
  std::mt19937 random(7);
  for (uint32_t code = 0; code < 16; ++code) {
    for (int i = 0; i < 800; ++i) {
      const int place = i % 8;
      const uint32_t beside = static_cast<uint32_t>(random()) & ~(15U << (4 * place));
      const uint32_t codes = beside | code << (4 * place);
      const uint32_t word = mx_stream_word(codes);
      EXPECT_EQ(mx_stream_codes(word), codes);
      const uint32_t half = mx_pair(word, place / 2) >> place % 2 * 16;
      const f16 number{static_cast<uint16_t>(half & 0xffff)};
      EXPECT_EQ(to_float(number) * 0x1p14F, to_float(e2m1{static_cast<uint8_t>(code)}));
    }
  }
}

/// Of a block's largest exponent: numbers become f16 that are not infinite, and the unit takes the
/// factor and the codes' 2^-14 back.
TEST(HopperMx, RowsFactorsAndUnitsCancel) {
  for (uint32_t exponent = kLeastMxExponent; exponent < 255; ++exponent) {
    const auto factor = std::bit_cast<float>(mx_row_factor(exponent));
    const auto unit = std::bit_cast<float>(mx_row_unit(exponent));
    EXPECT_EQ(factor * unit, 0x1p14F);
    const auto largest = std::bit_cast<float>(exponent << 23 | 0x7fffff);
    EXPECT_LT(largest * factor, 0x1p15F);
    EXPECT_GE(largest * factor, 0x1p14F);
  }
}

TEST(HopperMx, ScalesAreTheExponentsOfF32) {
  for (uint32_t scale = 1; scale < 255; ++scale) {
    EXPECT_EQ(mx_kept_scale(scale), scale);
    EXPECT_TRUE(mx_has_codes(scale));
    EXPECT_EQ(std::bit_cast<float>(scale << 23), to_float(e8m0{static_cast<uint8_t>(scale)}));
  }
  EXPECT_FALSE(mx_has_codes(0) || mx_has_codes(255));
  EXPECT_EQ(mx_kept_scale(0), 1U);
}

TEST(HopperMx, ScalesHaveAPlaceEach) {
  bool taken[128] = {};
  for (int row = 0; row < 16; ++row) {
    for (int group = 0; group < 8; ++group) {
      EXPECT_FALSE(taken[mx_scale_place(row, group)]) << row << ", " << group;
      taken[mx_scale_place(row, group)] = true;
    }
  }
}

}  // namespace
}  // namespace weft::hopper
