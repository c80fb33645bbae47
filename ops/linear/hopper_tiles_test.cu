// Products of tiles, against sums in double and, where k is summed in order, the bits of gemm_bf16.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arch/device.h"
#include "ops/gated_linear/hopper_prefill.h"
#include "ops/gemm_bf16/op.h"
#include "ops/linear/hopper_tiles.h"

namespace weft::hopper {
namespace {

TEST(TileParts, KeepAllMultiprocessorsReading) {
  EXPECT_EQ(tile_parts(448, 64, 132), 1);  // gate and up of Llama-3.1-8B
  EXPECT_EQ(tile_parts(64, 64, 132), 4);   // o
  EXPECT_EQ(tile_parts(64, 224, 132), 4);  // down
  EXPECT_EQ(tile_parts(96, 64, 132), 4);   // q, k, v
  EXPECT_EQ(tile_parts(256, 32, 132), 1);  // gate and up of Llama-3.2-1B
  EXPECT_EQ(tile_parts(2, 64, 132), 8);
  EXPECT_EQ(tile_parts(2, 7, 132), 1);
}

std::vector<__nv_bfloat16> normal(size_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw(0, scale);
  std::vector<__nv_bfloat16> values(count);
  for (__nv_bfloat16& value : values) {
    value = __float2bfloat16(draw(random));
  }
  return values;
}

template <class T>
DeviceMemory on(Device& device, const std::vector<T>& values) {
  DeviceMemory memory = device.allocate(values.size() * sizeof(T)).value();
  EXPECT_TRUE(device.upload(memory.data(), values.data(), memory.size()).ok());
  return memory;
}
template <class T>
std::vector<T> from(Device& device, const DeviceMemory& memory, size_t count) {
  std::vector<T> values(count);
  EXPECT_TRUE(device.download(values.data(), memory.data(), count * sizeof(T)).ok());
  return values;
}

struct Sizes {
  int64_t rows, n, k;
};

class TiledLinear : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_device("cuda");
    if (!opened.ok()) {
      GTEST_SKIP() << opened.error().message;
    }
    device_ = std::move(*opened);
  }
  /// Weights of every kind: beside the window, zeros, a row of zeros.
  static std::vector<__nv_bfloat16> weights(int64_t n, int64_t k) {
    std::vector<__nv_bfloat16> w = normal(static_cast<size_t>(n * k), 0.02f, 7);
    for (size_t i = 0; i < w.size(); i += 1009) {
      w[i] = __float2bfloat16(i % 2 == 0 ? 3e-9f : 40.0f);
    }
    for (size_t i = 500; i < w.size(); i += 3001) {
      w[i] = __float2bfloat16(0);
    }
    std::fill_n(w.begin() + 5 * k, k, __float2bfloat16(0));
    return w;
  }
  template <class Args>
  DeviceMemory tiles_of(const Args& args) {
    DeviceMemory tiles = device_->allocate(static_cast<size_t>(tiles_bytes(args))).value();
    const DeviceMemory refused = on(*device_, std::vector<uint32_t>{0});
    EXPECT_TRUE(make_tiles(args, reinterpret_cast<char*>(tiles.data()),
                           reinterpret_cast<uint32_t*>(refused.data()), device_->stream())
                    .ok());
    EXPECT_EQ(from<uint32_t>(*device_, refused, 1)[0], 0u);
    return tiles;
  }
  static std::vector<double> product(const std::vector<__nv_bfloat16>& a,
                                     const std::vector<__nv_bfloat16>& w, const Sizes& sizes) {
    std::vector<double> sums(static_cast<size_t>(sizes.rows * sizes.n));
    for (int64_t r = 0; r < sizes.rows; ++r) {
      for (int64_t c = 0; c < sizes.n; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < sizes.k; ++k) {
          sum += double{__bfloat162float(a[static_cast<size_t>(r * sizes.k + k)])} *
                 double{__bfloat162float(w[static_cast<size_t>(c * sizes.k + k)])};
        }
        sums[static_cast<size_t>(r * sizes.n + c)] = sum;
      }
    }
    return sums;
  }
  static double size_of_sums(const std::vector<double>& sums) {
    double squares = 0;
    for (const double sum : sums) {
      squares += sum * sum;
    }
    return std::sqrt(squares / static_cast<double>(sums.size()));
  }

  std::unique_ptr<Device> device_;
};

TEST_F(TiledLinear, LinearIsTheProduct) {
  for (const Sizes& s : {Sizes{1, 128, 64},
                         {9, 256, 576},
                         {32, 256, 2112},
                         {33, 384, 256},
                         {64, 256, 448},
                         {127, 256, 320},
                         {30, 34048, 64},
                         {100, 34048, 64}}) {
    SCOPED_TRACE(std::to_string(s.rows) + " x " + std::to_string(s.n) + " x " +
                 std::to_string(s.k));
    const auto a = normal(static_cast<size_t>(s.rows * s.k), 1, 3);
    const auto w = weights(s.n, s.k);
    const DeviceMemory a_at = on(*device_, a);
    const DeviceMemory w_at = on(*device_, w);
    const DeviceMemory out = on(*device_, std::vector<float>(static_cast<size_t>(s.rows * s.n), 2));
    LinearArgs args{.a = {a_at.data(), DType::bf16, s.k},
                    .w = {w_at.data(), DType::bf16, s.k},
                    .n = s.n,
                    .k = s.k,
                    .accumulate = true,
                    .out = {out.data(), DType::f32, s.n}};
    const DeviceMemory tiles = tiles_of(args);
    const auto* const tiles_at = reinterpret_cast<const char*>(tiles.data());
    ASSERT_TRUE(tiled_linear(args, tiles_at, s.rows, device_->stream()).ok());
    const auto got = from<float>(*device_, out, static_cast<size_t>(s.rows * s.n));
    const auto wanted = product(a, w, s);
    const double size = size_of_sums(wanted);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], 2 + wanted[i], 1e-5 * size + 1e-5 * std::abs(wanted[i])) << i;
    }

    args.accumulate = false;
    ASSERT_TRUE(tiled_linear(args, tiles_at, s.rows, device_->stream()).ok());
    const auto alone = from<float>(*device_, out, got.size());
    args.out.dtype = DType::bf16;
    ASSERT_TRUE(tiled_linear(args, tiles_at, s.rows, device_->stream()).ok());
    const auto rounded = from<__nv_bfloat16>(*device_, out, got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(__bfloat162float(rounded[i]), __bfloat162float(__float2bfloat16(alone[i]))) << i;
    }
    if (takes_tiles(args, s.rows, true, device_->stream())) {
      ASSERT_TRUE(weft::gemm_bf16({.m = s.rows,
                                   .n = s.n,
                                   .k = s.k,
                                   .a = args.a,
                                   .b = args.w,
                                   .out = {out.data(), DType::f32, s.n},
                                   .whole_k = true},
                                  device_->stream())
                      .ok());
      EXPECT_EQ(from<float>(*device_, out, got.size()), alone);
    }
  }
}

TEST_F(TiledLinear, GatedLinearHasTheBitsOfManyRows) {
  // So many columns that k is not cut.
  for (const Sizes& s : {Sizes{40, 64 * device_->info().units, 128}, {70, 256, 64}}) {
    const auto a = normal(static_cast<size_t>(s.rows * s.k), 1, 3);
    const auto w = weights(2 * s.n, s.k);
    const DeviceMemory a_at = on(*device_, a);
    const DeviceMemory w_at = on(*device_, w);
    const auto count = static_cast<size_t>(s.rows * s.n);
    const DeviceMemory out = device_->allocate(count * 2).value();
    for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
      const GatedLinearArgs args{.a = {a_at.data(), DType::bf16, s.k},
                                 .gate = {w_at.data(), DType::bf16, s.k},
                                 .up = {w_at.data() + s.n * s.k * 2, DType::bf16, s.k},
                                 .n = s.n,
                                 .k = s.k,
                                 .out = {out.data(), DType::bf16, s.n},
                                 .activation = activation};
      const DeviceMemory tiles = tiles_of(args);
      ASSERT_TRUE(takes_tiles(args, s.rows, true, device_->stream()));
      ASSERT_TRUE(tiled_gated_linear(args, reinterpret_cast<const char*>(tiles.data()), s.rows,
                                     device_->stream())
                      .ok());
      const auto got = from<__nv_bfloat16>(*device_, out, count);
      ASSERT_TRUE(prefill_gated_linear(args, s.rows, device_->stream()).ok());
      const auto wanted = from<__nv_bfloat16>(*device_, out, count);
      for (size_t i = 0; i < count; ++i) {  // but for the sign of a zero
        ASSERT_EQ(__bfloat162float(got[i]), __bfloat162float(wanted[i])) << i;
      }
    }
  }
}

TEST_F(TiledLinear, WeightsThatCannotBePackedAreRefused) {
  constexpr int64_t kN = 128;
  constexpr int64_t kK = 64;
  std::vector<__nv_bfloat16> w = weights(kN, kK);
  for (int64_t k = 0; k < 12; ++k) {
    w[static_cast<size_t>(3 * kK + k)] = __float2bfloat16(1e-20f);  // more than may be listed
  }
  const DeviceMemory w_at = on(*device_, w);
  const LinearArgs args{.a = {nullptr, DType::bf16, kK},
                        .w = {w_at.data(), DType::bf16, kK},
                        .n = kN,
                        .k = kK,
                        .out = {nullptr, DType::f32, kN}};
  const DeviceMemory tiles = device_->allocate(static_cast<size_t>(tiles_bytes(args))).value();
  const DeviceMemory refused = on(*device_, std::vector<uint32_t>{0});
  ASSERT_TRUE(make_tiles(args, reinterpret_cast<char*>(tiles.data()),
                         reinterpret_cast<uint32_t*>(refused.data()), device_->stream())
                  .ok());
  EXPECT_NE(from<uint32_t>(*device_, refused, 1)[0], 0u);
  LinearArgs odd = args;
  odd.k = 60;
  odd.w.stride = 60;
  EXPECT_EQ(tiles_bytes(odd), 0);
}

}  // namespace
}  // namespace weft::hopper
