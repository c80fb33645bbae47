// linear for a chunk's rows on sm_90a. Most projections are a plain product; a bias (Qwen2) or a
// factor (Granite) is applied by a pass of its own over the product, and so is the sum with the
// residual where there are few rows.
#include <algorithm>

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

/// gemm_bf16 has tiles of 128 rows: with a few, a handful of multiprocessors would read all of w.
bool few(const LinearArgs& args, int64_t rows) {
  constexpr int64_t kSkinnyStep = 16;  // of k
  return rows <= kSkinnyRows && args.k % kSkinnyStep == 0;
}

GemmSkinnyArgs skinny(const LinearArgs& args, int64_t rows, const Matrix& out,
                      const Workspace& workspace) {
  return {.m = rows,
          .n = args.n,
          .k = args.k,
          .a = args.a,
          .b = args.w,
          .a_scale = {},
          .b_scale = {},
          .out = out,
          .workspace = workspace};
}

}  // namespace

Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream) {
  if (!few(args, 1)) {
    return size_t{0};
  }
  size_t most = 0;
  for (int64_t rows = 1; rows <= kSkinnyRows; ++rows) {
    WEFT_ASSIGN(const size_t bytes,
                gemm_skinny_workspace(skinny(args, rows, args.out, {}), stream));
    most = std::max(most, bytes);
  }
  return most;
}

Status prefill_linear(const LinearArgs& args, int64_t rows, const PrefillScratch& scratch,
                      Stream stream) {
  const bool skinny_rows = few(args, rows);
  const bool finish = !plain(args) || (skinny_rows && args.accumulate);
  const Matrix out = finish ? Matrix{scratch.product, DType::f32, args.n} : args.out;
  if (skinny_rows) {
    WEFT_TRY(weft::gemm_skinny(skinny(args, rows, out, scratch.workspace), stream));
  } else {
    WEFT_TRY(weft::gemm_bf16({.m = rows,
                              .n = args.n,
                              .k = args.k,
                              .a = args.a,
                              .b = args.w,
                              .out = out,
                              .accumulate = !finish && args.accumulate,
                              .workspace = {}},
                             stream));
  }
  if (!finish) {
    return {};
  }
  return launch_kernel(finish_linear,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, scratch.product);
}

}  // namespace weft::hopper
