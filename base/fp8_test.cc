#include "base/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace weft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The values that the specifications tabulate.
TEST(Fp8, HasTheSpecifiedLimits) {
  EXPECT_EQ(kMax<e4m3fn>, 448);
  EXPECT_EQ(kMax<e4m3fnuz>, 240);
  EXPECT_EQ(kMax<e5m2>, 57344);
  EXPECT_EQ(kMax<e5m2fnuz>, 57344);
  EXPECT_EQ(kMax<e3m2>, 28);
  EXPECT_EQ(kMax<e2m3>, 7.5F);
  EXPECT_EQ(kMax<e2m1>, 6);
  // The smallest number, and the smallest normal one.
  EXPECT_EQ(to_float(e4m3fn{0x01}), 0x1p-9F);
  EXPECT_EQ(to_float(e4m3fn{0x08}), 0x1p-6F);
  EXPECT_EQ(to_float(e4m3fnuz{0x01}), 0x1p-10F);
  EXPECT_EQ(to_float(e4m3fnuz{0x08}), 0x1p-7F);
  EXPECT_EQ(to_float(e5m2{0x01}), 0x1p-16F);
  EXPECT_EQ(to_float(e5m2{0x04}), 0x1p-14F);
  EXPECT_EQ(to_float(e5m2fnuz{0x01}), 0x1p-17F);
  EXPECT_EQ(to_float(e5m2fnuz{0x04}), 0x1p-15F);
  EXPECT_EQ(to_float(e3m2{0x01}), 0.0625F);
  EXPECT_EQ(to_float(e2m3{0x01}), 0.125F);
  // 1 and its sign.
  EXPECT_EQ(to_float(e4m3fn{0x38}), 1);
  EXPECT_EQ(to_float(e4m3fnuz{0x40}), 1);
  EXPECT_EQ(to_float(e5m2{0xbc}), -1);
  EXPECT_EQ(to_float(e5m2fnuz{0xc0}), -1);
}

TEST(Fp8, KnowsItsSpecialCodes) {
  int nans = 0;
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    EXPECT_EQ(std::isnan(to_float(e4m3fn{bits})), code == 0x7f || code == 0xff);
    EXPECT_EQ(std::isnan(to_float(e4m3fnuz{bits})), code == 0x80);
    EXPECT_EQ(std::isnan(to_float(e5m2fnuz{bits})), code == 0x80);
    nans += std::isnan(to_float(e5m2{bits})) ? 1 : 0;
  }
  EXPECT_EQ(nans, 6);
  EXPECT_EQ(to_float(e5m2{0x7c}), kInfinity);
  EXPECT_EQ(to_float(e5m2{0xfc}), -kInfinity);
  EXPECT_TRUE(std::signbit(to_float(e4m3fn{0x80})));
}

TEST(Fp8, Fp4IsTheSpecifiedTable) {
  constexpr float kValues[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(to_float(e2m1{code}), kValues[code]);
    EXPECT_EQ(to_float(e2m1{static_cast<uint8_t>(code | 8)}), -kValues[code]);
  }
}

/// The nearest positive code by search over all of them: of two equally near, the even one.
template <class F>
uint8_t nearest(float x) {
  double least = std::numeric_limits<double>::infinity();
  uint8_t result = 0;
  for (uint8_t code = 0; code <= F::kMaxCode; ++code) {
    const double away = std::fabs(static_cast<double>(to_float(F{code})) - x);
    if (away < least || (away == least && code % 2 == 0)) {
      least = away;
      result = code;
    }
  }
  return result;
}

template <class F>
class SmallFormat : public testing::Test {};
using Formats = testing::Types<e4m3fn, e4m3fnuz, e5m2, e5m2fnuz, e3m2, e2m3, e2m1>;
TYPED_TEST_SUITE(SmallFormat, Formats);

TYPED_TEST(SmallFormat, EveryCodeComesBack) {
  for (int code = 0; code < 1 << TypeParam::kCodeBits; ++code) {
    const TypeParam f{static_cast<uint8_t>(code)};
    if (std::isfinite(to_float(f))) {
      EXPECT_EQ(saturate_to<TypeParam>(to_float(f)), f) << code;
    }
  }
}

TYPED_TEST(SmallFormat, RoundsToTheNearestEvenCode) {
  // Every number, every middle between two, and their neighbours; then the same below zero.
  std::vector<float> values;
  for (int code = 0; code < TypeParam::kMaxCode; ++code) {
    const float low = to_float(TypeParam{static_cast<uint8_t>(code)});
    const float high = to_float(TypeParam{static_cast<uint8_t>(code + 1)});
    const float middle = (low + high) / 2;
    values.insert(values.end(), {low, middle, std::nextafter(middle, low),
                                 std::nextafter(middle, high), std::nextafter(high, low)});
  }
  const bool has_negative_zero = !TypeParam::kHasNan || TypeParam::kNan != TypeParam::kSign;
  for (const float x : values) {
    const uint8_t expected = nearest<TypeParam>(x);
    EXPECT_EQ(saturate_to<TypeParam>(x).bits, expected) << x;
    const bool zero = expected == 0 && !has_negative_zero;
    EXPECT_EQ(saturate_to<TypeParam>(-x).bits, zero ? 0 : expected | TypeParam::kSign) << -x;
  }
}

TYPED_TEST(SmallFormat, Saturates) {
  const float max = kMax<TypeParam>;
  for (const float x : {max, max * 1.01F, max * 4, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(to_float(saturate_to<TypeParam>(x)), max);
    EXPECT_EQ(to_float(saturate_to<TypeParam>(-x)), -max);
  }
  const float nan = to_float(saturate_to<TypeParam>(kNan));
  EXPECT_TRUE(TypeParam::kHasNan ? std::isnan(nan) : nan == max);
  EXPECT_EQ(saturate_to<TypeParam>(std::numeric_limits<float>::denorm_min()).bits, 0);
}

TEST(E8m0, IsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const e8m0 scale{static_cast<uint8_t>(code)};
    EXPECT_EQ(to_float(scale), std::ldexp(1.0F, code - 127));
    EXPECT_EQ(floor_to_e8m0(to_float(scale)), scale);
    if (code > 0 && code < 254) {
      EXPECT_EQ(floor_to_e8m0(1.99F * to_float(scale)), scale);
    }
  }
  EXPECT_TRUE(std::isnan(to_float(e8m0{255})));
  EXPECT_EQ(floor_to_e8m0(kNan).bits, 255);
  EXPECT_EQ(floor_to_e8m0(kInfinity).bits, 255);
  EXPECT_EQ(floor_to_e8m0(0).bits, 0);
}

}  // namespace
}  // namespace weft
