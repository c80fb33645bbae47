#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "arch/cpu/vector_test.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void exponentials(const float* x, int64_t count, float* natural, float* binary) {
  const FloatTag d;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloatLanes)) {
    const auto v = hn::LoadU(d, x + i);
    hn::StoreU(exp(d, v), d, natural + i);
    hn::StoreU(exp2_of_nonpositive(d, v), d, binary + i);
  }
}

void rounded(const float* x, int64_t count, bf16* out) {
  const FloatTag d;
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(kFloatLanes)) {
    store(d, hn::LoadU(d, x + i), out + i);
  }
}

template <class T>
void rounded_to(const float* x, int64_t count, T* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, hn::LoadU(d, x + i), out + i);
  }
  if (i < count) {
    store_first(d, load_first(d, x + i, count - i), out + i, count - i);
  }
}
void rounded_small(const float* x, int64_t count, f16* half, e4m3fn* fn, e4m3fnuz* fnuz) {
  rounded_to(x, count, half);
  rounded_to(x, count, fn);
  rounded_to(x, count, fnuz);
}

void widened(const bf16* a, const f16* b, int64_t count, float* out_a, float* out_b) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, load(d, a + i), out_a + i);
    store(d, load(d, b + i), out_b + i);
  }
  if (i < count) {
    store_first(d, load_first(d, a + i, count - i), out_a + i, count - i);
    store_first(d, load_first(d, b + i, count - i), out_b + i, count - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {
namespace {

template <class F>
void on_every_isa(F f) {
  for (int i = 0; i <= static_cast<int>(detected_isa()); ++i) {
    force_isa(static_cast<Isa>(i));
    SCOPED_TRACE(name_of(current_isa()));
    f();
  }
  force_isa(std::nullopt);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// How many units in the last place of `want` lie between it and `got`.
double ulps(double want, float got) { return std::fabs(got - want) / (std::fabs(want) * 0x1p-23); }

TEST(Vector, ExponentialsAreWithinTwoUlps) {
  std::vector<float> x;
  for (float v = -87; v < 88.7f; v += 0.0037f) {
    x.push_back(v);
  }
  x.resize(x.size() / 16 * 16);
  std::vector<float> natural(x.size());
  std::vector<float> binary(x.size());
  on_every_isa([&] {
    const auto count = static_cast<int64_t>(x.size());
    WEFT_CPU_DISPATCH(exponentials)(x.data(), count, natural.data(), binary.data());
    double worst_natural = 0;
    double worst_binary = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      worst_natural =
          std::max(worst_natural, ulps(std::exp(static_cast<double>(x[i])), natural[i]));
      if (x[i] <= 0) {
        worst_binary =
            std::max(worst_binary, ulps(std::exp2(static_cast<double>(x[i])), binary[i]));
      }
    }
    EXPECT_LT(worst_natural, 2);
    EXPECT_LT(worst_binary, 2);
  });
}

TEST(Vector, ExponentialsOfSpecialNumbers) {
  float x[16] = {0, -kInfinity, kInfinity, std::bit_cast<float>(0x7fa57fa5), -0.0f, -1e30f, 1e30f};
  float natural[16];
  float binary[16];
  on_every_isa([&] {
    WEFT_CPU_DISPATCH(exponentials)(x, 16, natural, binary);
    EXPECT_EQ(natural[0], 1);
    EXPECT_EQ(natural[1], 0);
    EXPECT_EQ(natural[2], kInfinity);
    EXPECT_TRUE(std::isnan(natural[3]));
    EXPECT_EQ(natural[4], 1);
    EXPECT_EQ(natural[5], 0);
    EXPECT_EQ(natural[6], kInfinity);
    EXPECT_EQ(binary[0], 1);  // exactly: an unchanged maximum must not change a sum
    EXPECT_EQ(binary[1], 0);
    EXPECT_TRUE(std::isnan(binary[3]));
    EXPECT_EQ(binary[5], 0);
  });
}

TEST(Vector, ConversionsAreThoseOfTheScalars) {
  std::vector<bf16> a(1 << 16);
  std::vector<f16> b(1 << 16);
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    a[i].bits = static_cast<uint16_t>(i);
    b[i].bits = static_cast<uint16_t>(i);
  }
  const int64_t count = (1 << 16) - 3;  // a ragged end
  std::vector<float> wide_a(1 << 16);
  std::vector<float> wide_b(1 << 16);
  std::vector<float> near(1 << 16);
  std::vector<bf16> narrow(1 << 16);
  for (uint32_t i = 0; i < 1 << 16; ++i) {  // halves, just above and just below
    near[i] = std::bit_cast<float>(i * 0x10001U + 0x7fff);
  }
  on_every_isa([&] {
    WEFT_CPU_DISPATCH(widened)(a.data(), b.data(), count, wide_a.data(), wide_b.data());
    WEFT_CPU_DISPATCH(rounded)(near.data(), 1 << 16, narrow.data());
    for (int64_t i = 0; i < count; ++i) {
      const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
      const auto at = static_cast<size_t>(i);
      ASSERT_TRUE(same(wide_a[at], to_float(a[at]))) << i;
      ASSERT_TRUE(same(wide_b[at], to_float(b[at]))) << i;
      ASSERT_TRUE(narrow[at].bits == to_bf16(near[at]).bits || std::isnan(near[at])) << i;
      ASSERT_EQ(std::isnan(to_float(narrow[at])), std::isnan(near[at])) << i;
    }
  });
}

/// As the scalar conversions, which have exhaustive tests: over numbers of every exponent, the
/// middles between codes and their neighbours, NaN and infinities.
TEST(Vector, RoundsToSmallFormatsAsTheScalarConversions) {
  std::vector<float> x;
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = to_float(bf16{static_cast<uint16_t>(code)});
    x.insert(x.end(), {value, std::nextafter(value, 0.0F), std::nextafter(value, 1e30F)});
  }
  x.push_back(1);  // no multiple of a vector
  const auto count = static_cast<int64_t>(x.size());
  std::vector<f16> half(x.size());
  std::vector<e4m3fn> fn(x.size());
  std::vector<e4m3fnuz> fnuz(x.size());
  on_every_isa([&] {
    WEFT_CPU_DISPATCH(rounded_small)(x.data(), count, half.data(), fn.data(), fnuz.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        ASSERT_TRUE(std::isnan(to_float(half[i])) && std::isnan(to_float(fn[i])) &&
                    std::isnan(to_float(fnuz[i])));
        continue;
      }
      ASSERT_EQ(half[i].bits, to_f16(x[i]).bits) << x[i];
      ASSERT_EQ(fn[i].bits, saturate_to<e4m3fn>(x[i]).bits) << x[i];
      ASSERT_EQ(fnuz[i].bits, saturate_to<e4m3fnuz>(x[i]).bits) << x[i];
    }
  });
}

}  // namespace
}  // namespace weft::cpu
#endif  // HWY_ONCE