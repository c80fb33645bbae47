#include "base/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

TEST(Number, Bf16RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const bf16 x{static_cast<uint16_t>(code)};
    const float f = to_float(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(f))));
    } else {
      EXPECT_EQ(to_bf16(f).bits, x.bits);
    }
  }
}

TEST(Number, F16RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const f16 x{static_cast<uint16_t>(code)};
    const float f = to_float(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_f16(f))));
    } else {
      EXPECT_EQ(to_f16(f).bits, x.bits);
    }
  }
}

TEST(Number, Bf16RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, to_bf16(1.0f).bits);                // tie, even below
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, to_bf16(1.0f + 0x1p-6f).bits);  // tie, even above
  EXPECT_EQ(to_bf16(1.0f + 0x1.8p-8f).bits, to_bf16(1.0f + 0x1p-7f).bits);
  EXPECT_EQ(to_float(to_bf16(std::numeric_limits<float>::max())),
            std::numeric_limits<float>::infinity());
}

TEST(Number, F16RoundsToNearestEven) {
  EXPECT_EQ(to_f16(1.0f + 0x1p-11f).bits, to_f16(1.0f).bits);
  EXPECT_EQ(to_f16(1.0f + 3 * 0x1p-11f).bits, to_f16(1.0f + 0x1p-9f).bits);
  EXPECT_EQ(to_float(to_f16(65519.0f)), 65504.0f);
  EXPECT_EQ(to_float(to_f16(65520.0f)), std::numeric_limits<float>::infinity());
  EXPECT_EQ(to_float(to_f16(0x1p-25f)), 0.0f);  // tie between 0 and the least subnormal
  EXPECT_EQ(to_float(to_f16(0x1.8p-25f)), 0x1p-24f);
  EXPECT_EQ(to_f16(-0.0f).bits, 0x8000);
}

}  // namespace
}  // namespace weft
