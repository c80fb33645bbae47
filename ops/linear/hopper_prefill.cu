// linear for many rows on sm_90a. Most projections are a plain product; a bias (Qwen2) or a factor
// (Granite) is applied by a pass of its own over the product.
#include "arch/hopper/launch.cuh"
#include "ops/gemm_bf16/op.h"
#include "ops/linear/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;

/// out[r, c] = alpha * (product[r, c] + bias[c]) (+ out[r, c]).
__global__ void __launch_bounds__(kThreads)
    finish_linear(const __grid_constant__ LinearArgs args, const float* product) {
  const int64_t row = blockIdx.x;
  const auto* bias = static_cast<const uint16_t*>(args.bias.data);
  for (int column = static_cast<int>(threadIdx.x) * kStep; column < args.n;
       column += kThreads * kStep) {
    float4 v = *reinterpret_cast<const float4*>(product + row * args.n + column);
    if (bias != nullptr) {
      const uint2 b = *reinterpret_cast<const uint2*>(bias + column);
      v.x += __uint_as_float(b.x << 16);
      v.y += __uint_as_float(b.x & 0xffff0000);
      v.z += __uint_as_float(b.y << 16);
      v.w += __uint_as_float(b.y & 0xffff0000);
    }
    auto* to = reinterpret_cast<float4*>(static_cast<float*>(args.out.data) +
                                         row * args.out.stride + column);
    const float4 old = args.accumulate ? *to : float4{};
    *to = {old.x + args.alpha * v.x, old.y + args.alpha * v.y, old.z + args.alpha * v.z,
           old.w + args.alpha * v.w};
  }
}

bool plain(const LinearArgs& args) { return args.bias.data == nullptr && args.alpha == 1; }

}  // namespace

int64_t prefill_linear_scratch(const LinearArgs& args, int64_t rows) {
  return plain(args) ? 0 : rows * args.n;
}

Status prefill_linear(const LinearArgs& args, int64_t rows, float* scratch, Stream stream) {
  const bool finish = !plain(args);
  WEFT_TRY(weft::gemm_bf16({.m = rows,
                      .n = args.n,
                      .k = args.k,
                      .a = args.a,
                      .b = args.w,
                      .out = finish ? Matrix{scratch, DType::f32, args.n} : args.out,
                      .accumulate = !finish && args.accumulate,
                      .workspace = {}},
                     stream));
  if (!finish) {
    return {};
  }
  return launch_kernel(finish_linear,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, scratch);
}

}  // namespace weft::hopper
