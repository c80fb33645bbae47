#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "base/divide.h"
#include "ops/chunk_kernels.h"
#include "ops/harness/test_checks.h"
#include "ops/moe/experts.h"

namespace weft {
namespace {

TEST(MoeHopper, MatchesTheReference) { trial::expect_right_on_cuda("moe"); }

/// The draw and the experts by themselves, on a device and on the CPU.
class ExpertsHopper : public testing::Test {
 protected:
  static constexpr int64_t kExperts = 12;
  static constexpr int64_t kChosen = 3;
  static constexpr int64_t kHidden = 320;
  static constexpr int64_t kInner = 96;
  enum class Form { bf16, e4m3fn, mxfp4 };

  void SetUp() override {
    auto device = open_device("cuda");
    if (!device.ok()) {
      GTEST_SKIP() << device.error().message;
    }
    device_ = std::move(*device);
  }

  /// Random numbers of the host, and their copy on the device.
  template <class T>
  struct Array {
    std::vector<T> host;
    DeviceMemory device;

    T* on(bool gpu) { return gpu ? reinterpret_cast<T*>(device.data()) : host.data(); }
  };
  template <class T, class Make>
  Array<T> array(int64_t count, Make&& make) {
    Array<T> result;
    result.host.resize(static_cast<size_t>(count));
    std::generate(result.host.begin(), result.host.end(), make);
    const size_t bytes = result.host.size() * sizeof(T);
    auto memory = device_->allocate(bytes);
    EXPECT_TRUE(memory.ok());
    result.device = std::move(*memory);
    EXPECT_TRUE(device_->upload(result.device.data(), result.host.data(), bytes).ok());
    return result;
  }
  template <class T>
  std::vector<T> fetched(Array<T>& from) {
    EXPECT_TRUE(device_->synchronize().ok());
    EXPECT_TRUE(
        device_->download(from.host.data(), from.device.data(), from.host.size() * sizeof(T)).ok());
    return from.host;
  }
  Array<float> floats(int64_t count, float deviation) {
    return array<float>(count, [&] { return deviation * normal_(random_); });
  }
  Array<bf16> halves(int64_t count, float deviation) {
    return array<bf16>(count, [&] { return to_bf16(deviation * normal_(random_)); });
  }
  /// Bytes of matrices that are `pitch` apart: those of e4m3fn, or of MXFP4's codes and, from
  /// `scales` on, powers of two below 1.
  Array<uint8_t> codes(int64_t count, int64_t pitch, int64_t scales) {
    int64_t at = 0;
    return array<uint8_t>(count, [&] {
      const auto code = static_cast<uint8_t>(random_());
      return scales == 0              ? static_cast<uint8_t>(code & 0xbf)  // no NaN
             : at++ % pitch >= scales ? static_cast<uint8_t>(code % 4 + 120)
                                      : code;
    });
  }

  std::unique_ptr<Device> device_;
  std::mt19937 random_{5};
  std::normal_distribution<float> normal_;
};

TEST_F(ExpertsHopper, DrawAsTheCpu) {
  for (const int64_t groups : {1, 4}) {
    constexpr int64_t kRows = 9;
    Array<float> logits = floats(kRows * kExperts, 1);
    Array<float> correction = floats(kExperts, 0.3F);
    Array<int32_t> ids = array<int32_t>(kRows * kChosen, [] { return -1; });
    Array<float> weights = floats(kRows * kChosen, 1);
    const auto run = [&](bool gpu) {
      return route({.logits = {logits.on(gpu), DType::f32, kExperts},
                    .experts = kExperts,
                    .sigmoid = true,
                    .renormalise = true,
                    .drawn = {ids.on(gpu), weights.on(gpu), kChosen, kChosen},
                    .correction = {correction.on(gpu), DType::f32},
                    .groups = groups,
                    .kept_groups = (groups + 1) / 2,
                    .scale = 2.5F},
                   kRows, gpu ? device_->stream() : Stream{});
    };
    ASSERT_TRUE(run(false).ok());
    const std::vector<int32_t> drawn = ids.host;
    const std::vector<float> shares = weights.host;
    const Status status = run(true);
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(fetched(ids), drawn);
    const std::vector<float> found = fetched(weights);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], shares[i], 1e-6F);
    }
  }
}

TEST_F(ExpertsHopper, AreAsOnTheCpu) {
  for (const Form form : {Form::bf16, Form::e4m3fn, Form::mxfp4}) {
    // Gate's and up's matrices by turns, in one array; a gap behind each of down's.
    const bool mx = form == Form::mxfp4;
    const auto bytes_of = [&](int64_t elements) {
      return mx ? MxMatrix::bytes_of(elements) : elements * (form == Form::bf16 ? 2 : 1);
    };
    const int64_t one = bytes_of(kInner * kHidden);
    constexpr int64_t kGap = 64;
    const auto make = [&](int64_t bytes, int64_t pitch, int64_t k) {
      if (form != Form::bf16) {
        return codes(bytes, pitch, mx ? kInner * kHidden / 2 : 0);
      }
      const Array<bf16> numbers = halves(bytes / 2, 1 / std::sqrt(static_cast<float>(k)));
      size_t at = 0;
      return array<uint8_t>(
          bytes, [&] { return reinterpret_cast<const uint8_t*>(numbers.host.data())[at++]; });
    };
    Array<uint8_t> both = make(2 * kExperts * one, one, kHidden);
    Array<uint8_t> down = make(kExperts * (one + kGap), one + kGap, kInner);
    const int64_t blocks = scale_blocks(kInner) * scale_blocks(kHidden);
    Array<float> scales = floats(3 * kExperts * blocks, 1e-2F);
    Array<bf16> biases = halves(kExperts * (2 * kInner + kHidden), 0.3F);
    const auto matrices = [&](const uint8_t* first, const float* own, int64_t n, int64_t k,
                              int64_t pitch) {
      ExpertMatrices all = mx_experts(first, n, k);
      if (!mx) {
        all = {.first = {first, form == Form::bf16 ? DType::bf16 : DType::e4m3fn, k}};
      }
      all.pitch = pitch;
      if (form == Form::e4m3fn) {
        all.block_scales = own;
        all.block_scales_pitch = blocks * int64_t{sizeof(float)};
      }
      return all;
    };
    for (const int64_t rows : {1, 20, 150}) {  // few slots to an expert, more and many
      SCOPED_TRACE(testing::Message() << "form " << static_cast<int>(form) << " rows " << rows);
      Array<bf16> a = halves(rows * kHidden, 1);
      int32_t next = 0;
      Array<int32_t> ids = array<int32_t>(rows * kChosen, [&] {
        return next++ * 5 % static_cast<int32_t>(kExperts - 1);  // the last has none
      });
      Array<float> weights =
          array<float>(rows * kChosen, [&] { return std::abs(normal_(random_)); });
      Array<float> out = floats(rows * kHidden, 1);
      Array<bf16> rounded = halves(rows * kHidden, 1);
      const auto run = [&](bool gpu, DType format) -> Status {
        const bf16* const bias = biases.on(gpu);
        void* const result =
            format == DType::f32 ? static_cast<void*>(out.on(gpu)) : rounded.on(gpu);
        MoeArgs args{.rows = rows,
                     .chosen = kChosen,
                     .experts = kExperts,
                     .hidden = kHidden,
                     .inner = kInner,
                     .a = {a.on(gpu), DType::bf16, kHidden},
                     .ids = ids.on(gpu),
                     .weights = weights.on(gpu),
                     .gate = matrices(both.on(gpu), scales.on(gpu), kInner, kHidden, 2 * one),
                     .up = matrices(both.on(gpu) + one, scales.on(gpu) + kExperts * blocks, kInner,
                                    kHidden, 2 * one),
                     .down = matrices(down.on(gpu), scales.on(gpu) + 2 * kExperts * blocks, kHidden,
                                      kInner, one + kGap),
                     .gate_bias = {bias, DType::bf16},
                     .up_bias = {bias + kExperts * kInner, DType::bf16},
                     .down_bias = {bias + kExperts * 2 * kInner, DType::bf16},
                     .limit = mx ? 1.5F : 0,
                     .out = {result, format, kHidden},
                     .workspace = {}};
        const Stream stream = gpu ? device_->stream() : Stream{};
        WEFT_ASSIGN(args.workspace.bytes, moe_workspace(args, stream));
        Array<std::byte> space = array<std::byte>(static_cast<int64_t>(args.workspace.bytes) + 256,
                                                  [] { return std::byte{}; });
        args.workspace.data = reinterpret_cast<void*>(
            round_up(reinterpret_cast<uintptr_t>(space.on(gpu)), uintptr_t{256}));
        WEFT_TRY(moe(args, stream));
        return gpu ? device_->synchronize() : Status();
      };
      const auto expect_rounded = [&] {
        for (size_t i = 0; i < out.host.size(); ++i) {
          ASSERT_EQ(rounded.host[i].bits, to_bf16(out.host[i]).bits) << i;
        }
      };
      ASSERT_TRUE(run(false, DType::f32).ok());
      ASSERT_TRUE(run(false, DType::bf16).ok());
      expect_rounded();
      const std::vector<float> expected = out.host;
      const Status status = run(true, DType::f32);
      ASSERT_TRUE(status.ok()) << status.error().message;
      const std::vector<float> found = fetched(out);
      float most = 0;
      for (const float x : expected) {
        most = std::max(most, std::abs(x));
      }
      // Roundings to bf16 between the products, and of weights in eight bits, on either side.
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 0.01F * most) << i;
      }
      if (rows == 20) {
        ASSERT_TRUE(run(true, DType::bf16).ok());
        fetched(rounded);
        expect_rounded();
      }
    }
  }
}

// Few rows and many are different kernels' unless the rows are to be alone.
TEST_F(ExpertsHopper, RowsAreAlone) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kColumns = 32;
  constexpr int64_t kLong = 1280;
  const ChunkKernels& kernels = *chunk_kernels(Arch::hopper);
  Array<bf16> a = halves(kRows * kChosen * kLong, 1);
  int32_t next = 0;
  Array<int32_t> ids =
      array<int32_t>(kRows * kChosen, [&] { return next++ * 5 % static_cast<int32_t>(kExperts); });
  Array<int32_t> order =
      array<int32_t>(moe_order_elements(kRows, kChosen, kExperts), [] { return 0; });
  Array<float> shares = floats(kRows * kChosen, 1);
  Array<float> products = floats(kRows * kChosen * kColumns, 1);
  Array<float> out = floats(kRows * kColumns, 1);
  for (const bool mx : {false, true}) {
    constexpr int64_t kElements = kColumns * kLong;
    Array<uint8_t> codes_of_mx = codes(kExperts * MxMatrix::bytes_of(kElements),
                                       MxMatrix::bytes_of(kElements), kElements / 2);
    Array<bf16> numbers = halves(kExperts * kElements, 0.03F);
    const ExpertMatrices matrices =
        mx ? mx_experts(codes_of_mx.on(true), kColumns, kLong)
           : ExpertMatrices{{numbers.on(true), DType::bf16, kLong}, kElements * 2};
    const auto first_rows = [&](int64_t rows, bool alone) {
      const PrefillExpertsDown args{.a = {a.on(true), DType::bf16, kLong},
                                    .drawn = {.ids = ids.on(true),
                                              .weights = shares.on(true),
                                              .experts = kExperts,
                                              .chosen = kChosen,
                                              .order = order.on(true),
                                              .alone = alone},
                                    .weight = matrices,
                                    .n = kColumns,
                                    .k = kLong,
                                    .out = {out.on(true), DType::f32, kColumns},
                                    .products = products.on(true)};
      EXPECT_TRUE(kernels.experts_down(args, rows, device_->stream()).ok());
      std::vector<float> found = fetched(out);
      found.resize(2 * kColumns);
      return found;
    };
    const std::vector<float> among = first_rows(kRows, true);
    for (const int64_t rows : {2, 5, 20}) {
      EXPECT_EQ(first_rows(rows, true), among) << rows << " rows, mxfp4 " << mx;
    }
    EXPECT_NE(first_rows(2, false), among) << "the test shows nothing";
  }
}

}  // namespace
}  // namespace weft
