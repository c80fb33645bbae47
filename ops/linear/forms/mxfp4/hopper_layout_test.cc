#include "ops/linear/forms/mxfp4/hopper_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "base/fp8.h"
#include "base/number.h"

namespace weft::hopper {
namespace {

TEST(HopperMx, EveryCodeComesBackInEveryPlace) {
  std::mt19937 random(7);
  for (uint32_t code = 0; code < 16; ++code) {
    for (int place = 0; place < 8; ++place) {
      uint32_t word = 0;
      uint32_t beside = 0;
      for (int i = 0; i < 8; ++i) {
        const uint32_t other = i == place ? code : random() & 15;
        word |= mx_placed(other, i / 2) << i % 2 * 16;
        beside |= i / 2 == place / 2 ? other << i % 2 * 4 : 0;
      }
      const uint32_t pair = mx_pair(word, place / 2);
      EXPECT_EQ(mx_codes(pair), beside) << code << " in place " << place;
      const bf16 half{static_cast<uint16_t>(pair >> place % 2 * 16)};
      EXPECT_EQ(to_float(half) * 0x1p126F, to_float(e2m1{static_cast<uint8_t>(code)}));
    }
  }
  EXPECT_EQ(to_float(bf16{kMxUnits & 0xffff}), 0x1p126F);
}

TEST(HopperMx, ScalesAreTheExponentsOfBf16) {
  for (uint32_t scale = 1; scale < 255; ++scale) {
    EXPECT_EQ(mx_kept_scale(scale), scale);
    EXPECT_TRUE(mx_has_codes(scale));
    EXPECT_EQ(to_float(bf16{static_cast<uint16_t>(scale << 7)}),
              to_float(e8m0{static_cast<uint8_t>(scale)}));
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
