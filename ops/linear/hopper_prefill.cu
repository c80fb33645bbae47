// linear for a chunk's rows on sm_90a. Most projections are a plain product; a bias (Qwen2), a
// factor (Granite), an activation (StarCoder2) or a soft cap (Gemma-2) is applied by a pass of its
// own over the product, and so is the sum with the residual where there are few rows. Rows in f32
// go through a kernel that does all of it.
#include <algorithm>

#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "ops/gemm_bf16/op.h"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/linear/hopper_prefill.h"
#include "ops/linear/hopper_tiles.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;

/// Activation and soft cap. No part of the kernels: 32 copies of it would be larger than they are.
__device__ __noinline__ float bend(Activation activation, float soft_cap, float x) {
  return cap_softly(activate(activation, x), soft_cap);
}

/// f(alpha * sum), f the activation and the soft cap, where there are any.
template <bool kBends>
__device__ __forceinline__ float finish(const LinearArgs& args, float sum) {
  const float x = args.alpha * sum;
  return kBends ? bend(args.activation, args.soft_cap, x) : x;
}

/// out[r, c] = f(alpha * (product[r, c] + bias[c])) (+ out[r, c]). `product` may be out.
template <bool kBends>
__global__ void __launch_bounds__(kThreads)
    finish_linear(const __grid_constant__ LinearArgs args, const float* product, int64_t stride) {
  begin_in_turn();
  const int64_t row = blockIdx.x;
  const auto* bias = static_cast<const uint16_t*>(args.bias.data);
  for (int column = static_cast<int>(threadIdx.x) * kStep; column < args.n;
       column += kThreads * kStep) {
    float4 v = read_x4(product + row * stride + column);
    if (bias != nullptr) {
      const float4 b = read_x4(bias + column);
      v = {v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w};
    }
    v = {finish<kBends>(args, v.x), finish<kBends>(args, v.y), finish<kBends>(args, v.z),
         finish<kBends>(args, v.w)};
    const int64_t at = row * args.out.stride + column;
    if (args.accumulate) {
      const float4 old = read_x4(static_cast<const float*>(args.out.data) + at);
      v = {old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w};
    }
    store_x4(args.out.data, args.out.dtype, at, v);
  }
}

/// kGroups * 32 columns a block. Blocks of the same columns, whose weights are the same, follow one
/// another.
template <class W, int kGroups, bool kBends>
__global__ void __launch_bounds__(F32Tile::kThreads)
    linear_f32(const __grid_constant__ LinearArgs args, int64_t rows, int row_tiles) {
  constexpr int kThreadColumns = kGroups * F32Tile::kThreadColumns;
  const int64_t row = int64_t{blockIdx.x % row_tiles} * F32Tile::kRows;
  const int64_t column = int64_t{blockIdx.x / row_tiles} * kGroups * F32Tile::kColumns;
  F32Group groups[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    groups[g] = {args.w, column + g * F32Tile::kColumns};
  }
  float sums[F32Tile::kThreadRows][kThreadColumns];
  multiply_f32<W>(args.a, row, rows, groups, args.n, args.k, sums);

  float bias[kThreadColumns];
  load_bias<W>(args.bias, column, args.n, bias);
  // What is added to is asked for all at once, or the memory's latency would show again and again.
  float old[F32Tile::kThreadRows][kThreadColumns] = {};
  if (args.accumulate) {
    each_f32<kThreadColumns>(row, rows, column, args.n, [&](int i, int j, int64_t r, int64_t c) {
      old[i][j] = static_cast<const float*>(args.out.data)[r * args.out.stride + c];
    });
  }
  each_f32<kThreadColumns>(row, rows, column, args.n, [&](int i, int j, int64_t r, int64_t c) {
    const float x = old[i][j] + finish<kBends>(args, sums[i][j] + bias[j]);
    const int64_t at = r * args.out.stride + c;
    if constexpr (kBends) {
      store_x1(args.out.data, args.out.dtype, at, x);
    } else {
      static_cast<float*>(args.out.data)[at] = x;
    }
  });
}

template <class W, int kGroups, bool kBends>
Status start_f32(const LinearArgs& args, int rows, cudaStream_t stream) {
  const int row_tiles = ceil_div(rows, F32Tile::kRows);
  const int column_tiles = ceil_div(static_cast<int>(args.n), kGroups * F32Tile::kColumns);
  return launch_kernel(
      linear_f32<W, kGroups, kBends>,
      {.blocks = row_tiles * column_tiles, .threads = F32Tile::kThreads, .stream = stream}, args,
      int64_t{rows}, row_tiles);
}

bool bends(const LinearArgs& args) {
  return args.activation != Activation::none || args.soft_cap > 0;
}

/// Wide tiles read less; narrow ones keep more multiprocessors busy. The bits are the same.
template <class W>
Status launch_f32(const LinearArgs& args, int rows, Stream stream) {
  const int wide =
      ceil_div(rows, F32Tile::kRows) * ceil_div(static_cast<int>(args.n), 2 * F32Tile::kColumns);
  const auto native = static_cast<cudaStream_t>(stream.native);
  const bool narrow = wide < 2 * stream.device->info().units;
  if (bends(args) || args.out.dtype != DType::f32) {
    return narrow ? start_f32<W, 1, true>(args, rows, native)
                  : start_f32<W, 2, true>(args, rows, native);
  }
  return narrow ? start_f32<W, 1, false>(args, rows, native)
                : start_f32<W, 2, false>(args, rows, native);
}

/// Whether something comes after the product.
bool finishes(const LinearArgs& args) {
  return args.bias.data != nullptr || args.alpha != 1 || bends(args);
}

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
          .constant_b = true,
          .workspace = workspace};
}

}  // namespace

std::string_view refuse_prefill_linear(const LinearArgs& args) {
  if (args.a.dtype == DType::f32) {
    return args.k % 8 == 0 && args.a.stride % 8 == 0 && args.w.stride % 8 == 0
               ? ""
               : "k and strides must be multiples of 8";
  }
  if (args.a.dtype != DType::bf16 || args.w.dtype != DType::bf16) {
    return "rows must be f32, or bf16 and the weights too";
  }
  return args.n % 8 == 0 && args.k % 8 == 0 && args.a.stride % 8 == 0 && args.w.stride % 8 == 0 &&
                 args.out.stride % 4 == 0
             ? ""
             : "n, k and strides must be multiples of 8";
}

Result<size_t> prefill_linear_workspace(const LinearArgs& args, Stream stream) {
  if (args.a.dtype == DType::f32 || !few(args, 1)) {
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
  if (args.a.dtype == DType::f32) {
    return with_weights(args.w.dtype, [&](auto w) {
      return launch_f32<decltype(w)>(args, static_cast<int>(rows), stream);
    });
  }
  const bool tiled = scratch.tiles != nullptr;
  const bool skinny_rows = !tiled && !scratch.whole_k && few(args, rows);
  const bool finish = finishes(args) || (skinny_rows && args.accumulate);
  const bool in_place = args.out.dtype == DType::f32 && !args.accumulate;
  const Matrix out = finish && !in_place ? Matrix{scratch.product, DType::f32, args.n} : args.out;
  if (tiled) {
    LinearArgs product = args;
    product.out = out;
    product.accumulate = !finish && args.accumulate;
    WEFT_TRY(tiled_linear(product, scratch.tiles, rows, stream));
  } else if (skinny_rows) {
    WEFT_TRY(weft::gemm_skinny(skinny(args, rows, out, scratch.workspace), stream));
  } else {
    WEFT_TRY(weft::gemm_bf16({.m = rows,
                              .n = args.n,
                              .k = args.k,
                              .a = args.a,
                              .b = args.w,
                              .out = out,
                              .accumulate = !finish && args.accumulate,
                              .constant_b = true,
                              .whole_k = scratch.whole_k,
                              .workspace = {}},
                             stream));
  }
  if (!finish) {
    return {};
  }
  return launch_kernel(bends(args) ? finish_linear<true> : finish_linear<false>,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, static_cast<const float*>(out.data), out.stride);
}

}  // namespace weft::hopper
