#include "ops/linear/forms/fp8/hopper_layout.h"

#include <gtest/gtest.h>

#include <random>

#include "base/fp8.h"
#include "base/number.h"

namespace weft::hopper {
namespace {

float number(uint32_t pair, int which) {
  const bf16 half{static_cast<uint16_t>(pair >> 16 * which)};
  return to_float(half) * 0x1p120F;
}

TEST(HopperFp8, EveryCodeComesBackInEveryPlace) {
  std::mt19937 random(7);
  for (uint32_t code = 0; code < 256; ++code) {
    for (int place = 0; place < 4; ++place) {
      uint32_t codes[4];
      for (uint32_t& other : codes) {
        other = random() & 0xff;
      }
      codes[place] = code;
      const uint32_t word = fp8_word(codes[0], codes[1], codes[2], codes[3]);
      const uint32_t pair = place < 2 ? first_pair(word) : second_pair(word);
      EXPECT_EQ(fp8_codes(pair), codes[place / 2 * 2] | codes[place / 2 * 2 + 1] << 8);
      const bool nan = (code & 0x7f) == e4m3fn::kNan;
      const float expected = to_float(e4m3fn{static_cast<uint8_t>(nan ? code - 1 : code)});
      const float sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
      EXPECT_EQ(number(pair, place % 2), nan ? expected + 32 * sign : expected)
          << code << " in place " << place;
    }
  }
  EXPECT_EQ(to_float(bf16{kFp8Units & 0xffff}), 0x1p120F);
}

TEST(HopperFp8, ScalesHaveAPlaceEach) {
  bool taken[32] = {};
  for (int row = 0; row < 16; ++row) {
    for (int half = 0; half < 2; ++half) {
      const int place = fp8_scale_place(row, half);
      EXPECT_FALSE(taken[place]) << row << ", " << half;
      taken[place] = true;
      EXPECT_EQ(place / 4, row % 8);  // a lane of the four that have this row
    }
  }
}

}  // namespace
}  // namespace weft::hopper
