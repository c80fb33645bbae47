// On a GPU kernels of one stream overlap (ops/kernel.h): what a chain of operations computes, each
// reading what the one before wrote, must be what it computes when every one is waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "arch/device.h"
#include "base/divide.h"
#include "ops/gemm_bf16/op.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/gemm_skinny/op.h"
#include "ops/harness/tensor.h"
#include "ops/rmsnorm_quant/op.h"
#include "ops/swiglu_quant/op.h"

namespace weft {
namespace {

using trial::Random;
using trial::Side;
using trial::Tensor;

constexpr int64_t kHidden = 1024;
constexpr int64_t kInner = 1536;
constexpr int kLayers = 8;

/// Layers of a model without attention, in bf16 and in FP8. All layers write the same buffers, so
/// that a kernel that begins too early finds what is older, or overwrites what is still read.
class Layers {
 public:
  Layers(Device& device, int64_t rows, Random& random) : device_(device), rows_(rows) {
    add(x_, rows, kHidden, DType::bf16, &random);
    add(residual_, rows, kHidden, DType::bf16, &random);
    add(norm_, 1, kHidden, DType::bf16, &random);
    add(up_weight_, 2 * kInner, kHidden, DType::bf16, &random);
    add(down_weight_, kHidden, kInner, DType::bf16, &random);
    add(up_weight_fp8_, 2 * kInner, kHidden, DType::e4m3fn, &random);
    add(up_weight_scales_, 2 * kInner / kScaleBlock, kHidden / kScaleBlock, DType::f32, &random);
    add(normed_, rows, kHidden, DType::bf16);
    add(normed_fp8_, rows, kHidden, DType::e4m3fn);
    add(normed_scales_, kHidden / kScaleBlock, round_up(rows, 4), DType::f32);
    add(both_, rows, 2 * kInner, DType::bf16);
    add(inner_, rows, kInner, DType::bf16);
    add(scores_, rows, round_up(rows, 8), DType::f32);
    add(few_scores_, kSkinnyRows, round_up(rows, 8), DType::f32);
  }

  /// From the same contents; waits after each operation where `apart`. All that was written.
  std::vector<std::vector<uint8_t>> run(bool apart) {
    for (Tensor* each : all_) {
      each->restore();
      EXPECT_TRUE(each->upload(device_).ok());
    }
    const auto next = [&](const Status& status) {
      EXPECT_TRUE(status.ok()) << status.error().message;
      if (apart) {
        EXPECT_TRUE(device_.synchronize().ok());
      }
    };
    for (int layer = 0; layer < kLayers; ++layer) {
      layer_of(layer, next);
    }
    EXPECT_TRUE(device_.synchronize().ok());
    std::vector<std::vector<uint8_t>> result;
    for (Tensor* each : all_) {
      EXPECT_TRUE(each->download(device_).ok());
      result.push_back(each->cells());
    }
    return result;
  }

 private:
  void add(std::unique_ptr<Tensor>& tensor, int64_t rows, int64_t columns, DType type,
           Random* random = nullptr) {
    // Restored before each run, whichever it is: inputs are among what is compared.
    const auto role = random != nullptr ? Tensor::Role::inout : Tensor::Role::output;
    tensor = std::make_unique<Tensor>("tensor", role, rows, columns, type);
    if (random != nullptr) {
      tensor->fill(*random, columns > 1 && rows > rows_ ? 0.03F : 1);
    }
    tensor->seal();
    EXPECT_TRUE(tensor->place(device_).ok());
    all_.push_back(tensor.get());
  }

  static ConstMatrix columns(const Tensor& tensor, int64_t from) {
    ConstMatrix matrix = tensor.in(Side::device);
    matrix.data = static_cast<const bf16*>(matrix.data) + from;
    return matrix;
  }

  /// x W^T by whichever operation is for so many rows.
  Status product(Tensor& a, Tensor& weight, Tensor& out) {
    const auto fill = [&](auto args) {
      args.m = rows_;
      args.n = weight.rows();
      args.k = weight.columns();
      args.a = a.in(Side::device);
      args.b = weight.in(Side::device);
      args.out = out.out(Side::device);
      args.constant_b = true;
      return args;
    };
    return rows_ <= kSkinnyRows ? gemm_skinny(fill(GemmSkinnyArgs()), device_.stream())
                                : gemm_bf16(fill(GemmBf16Args()), device_.stream());
  }

  template <class Next>
  void layer_of(int layer, const Next& next) {
    const bool fp8 = layer % 2 == 1;
    RmsNormQuantArgs norm;
    norm.rows = rows_;
    norm.columns = kHidden;
    norm.x = x_->in(Side::device);
    norm.residual = residual_->out(Side::device);
    norm.weight = norm_->vector(Side::device);
    norm.y.out = (fp8 ? normed_fp8_ : normed_)->out(Side::device);
    const int64_t block_stride = normed_scales_->columns();
    auto* scales = static_cast<float*>(normed_scales_->data(Side::device));
    if (fp8) {
      norm.y.scaling = Scaling::block;
      norm.y.scales = {scales, 1, block_stride};
    }
    next(rmsnorm_quant(norm, device_.stream()));
    if (fp8) {
      GemmFp8BlockwiseArgs up;
      up.m = rows_;
      up.n = 2 * kInner;
      up.k = kHidden;
      up.a = normed_fp8_->in(Side::device);
      up.b = up_weight_fp8_->in(Side::device);
      up.a_scale = {scales, 1, block_stride};
      up.b_scale = {static_cast<const float*>(up_weight_scales_->data(Side::device)),
                    kHidden / kScaleBlock, 1};
      up.out = both_->out(Side::device);
      up.constant_b = layer % 4 == 1;
      next(gemm_fp8_blockwise(up, device_.stream()));
    } else {
      next(product(*normed_, *up_weight_, *both_));
    }
    SwigluQuantArgs swiglu;
    swiglu.rows = rows_;
    swiglu.columns = kInner;
    swiglu.gate = columns(*both_, 0);
    swiglu.up = columns(*both_, kInner);
    swiglu.y.out = inner_->out(Side::device);
    next(swiglu_quant(swiglu, device_.stream()));
    next(product(*inner_, *down_weight_, *x_));
    // Products whose b was written just before: of 1, 2, 4 ... 32 rows, and of all.
    GemmSkinnyArgs few;
    few.m = std::min<int64_t>(rows_, int64_t{1} << layer % 6);
    few.n = rows_ / 8 * 8;
    few.k = kHidden;
    few.a = residual_->in(Side::device);
    few.b = x_->in(Side::device);
    few.out = few_scores_->out(Side::device);
    if (few.n > 0) {
      next(gemm_skinny(few, device_.stream()));
    }
    GemmBf16Args scores;
    scores.m = rows_;
    scores.n = rows_ / 8 * 8;
    scores.k = kHidden;
    scores.a = residual_->in(Side::device);
    scores.b = x_->in(Side::device);
    scores.out = scores_->out(Side::device);
    scores.accumulate = layer > 0;
    if (scores.n > 0) {
      next(gemm_bf16(scores, device_.stream()));
    }
  }

  Device& device_;
  int64_t rows_;
  std::vector<Tensor*> all_;
  std::unique_ptr<Tensor> x_, residual_, norm_, up_weight_, down_weight_, up_weight_fp8_,
      up_weight_scales_, normed_, normed_fp8_, normed_scales_, both_, inner_, scores_, few_scores_;
};

TEST(OverlappingKernels, ComputeWhatTheyDoApart) {
  const auto device = open_device("cuda");
  if (!device.ok()) {
    GTEST_SKIP() << device.error().message;
  }
  Random random(7);
  for (const int64_t rows : {1, 8, 16, 32, 129, 512}) {
    Layers layers(**device, rows, random);
    const auto apart = layers.run(true);
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(layers.run(false), apart) << rows << " rows, run " << i;
    }
  }
}

}  // namespace
}  // namespace weft
