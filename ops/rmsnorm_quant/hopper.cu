// rmsnorm_quant on sm_90a.
#include "arch/hopper/launch.cuh"
#include "ops/hopper_rows.cuh"
#include "ops/rmsnorm_quant/hopper_plan.h"

namespace weft::hopper {
namespace {

struct RmsNormParams {
  const uint16_t* x = nullptr;
  int64_t x_stride = 0;
  uint16_t* residual = nullptr;
  int64_t residual_stride = 0;
  const uint16_t* weight = nullptr;
  int columns = 0;
  float epsilon = 0;
  int cluster = 1;  ///< blocks that share a row
  RowOut out;
};

/// Row blockIdx.x / cluster. A thread keeps kKept chunks in registers: those at (i blockDim +
/// thread) of its block's part of the row. What does not fit (kKept is 0) is read again.
template <class Pair, Scaling kScaling, int kKept>
__global__ void __launch_bounds__(1024) rmsnorm_quant_row(const __grid_constant__ RmsNormParams p) {
  __shared__ float slots[2][kRowSlots];
  const int64_t row = blockIdx.x / p.cluster;
  const int rank = p.cluster > 1 ? cluster_rank() : 0;
  // Parts are whole blocks of scales.
  const int blocks = (p.columns + kScaleBlock - 1) / kScaleBlock;
  const int part = (blocks + p.cluster - 1) / p.cluster * kScaleBlock;
  const int begin = rank * part;
  const int end = min(p.columns, begin + part);
  const uint16_t* x = p.x + row * p.x_stride;
  uint16_t* residual = p.residual != nullptr ? p.residual + row * p.residual_stride : nullptr;

  // h of a chunk, rounded; written back where there is a residual.
  const auto first_pass = [&](int column, uint4& kept) {
    kept = *reinterpret_cast<const uint4*>(x + column);
    float h[kChunk];
    unpack<Pair>(kept, h);
    if (residual != nullptr) {
      float r[kChunk];
      unpack<Pair>(*reinterpret_cast<const uint4*>(residual + column), r);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        h[i] += r[i];
      }
      kept = pack<Pair>(h);
      *reinterpret_cast<uint4*>(residual + column) = kept;
      unpack<Pair>(kept, h);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      sum += h[i] * h[i];
    }
    return sum;
  };
  constexpr int kSteps = kKept > 0 ? kKept : 1;
  uint4 kept[kSteps];
  uint4 weights[kSteps] = {};
  if (p.cluster > 1) {
    cluster_arrive();  // see cluster_wait() below
  }
  const auto column_of = [&](int step) {
    return begin + (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
  };
  const int steps = kKept > 0 ? kKept : (part / kChunk + blockDim.x - 1) / blockDim.x;
  float sum = 0;
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int column = column_of(i);
      kept[i] = {};
      if (column < end) {
        weights[i] = *reinterpret_cast<const uint4*>(p.weight + column);
        sum += first_pass(column, kept[i]);
      }
    }
  } else {
    for (int i = 0; i < steps; ++i) {
      if (const int column = column_of(i); column < end) {
        sum += first_pass(column, kept[0]);
      }
    }
  }
  if (p.cluster > 1) {
    cluster_wait();  // all blocks run: their shared memory may be written
  }
  sum = over_row(sum, p.cluster, slots[0], Sum{});
  const float factor = 1 / sqrtf(sum / static_cast<float>(p.columns) + p.epsilon);

  const auto normed = [&](int i, float(&v)[kChunk]) {
    const int column = column_of(i);
    uint4 h = kept[kKept > 0 ? i : 0];
    uint4 w = weights[kKept > 0 ? i : 0];
    if constexpr (kKept == 0) {
      h = w = {};
      if (column < end) {
        h = *reinterpret_cast<const uint4*>((residual != nullptr ? residual : x) + column);
        w = *reinterpret_cast<const uint4*>(p.weight + column);
      }
    }
    unpack<Pair>(h, v);
    float scale[kChunk];
    unpack<Pair>(w, scale);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      v[j] = column < end ? v[j] * factor * scale[j] : 0;
    }
    return column;
  };
  float reciprocal = 1;
  if constexpr (kScaling == Scaling::tensor) {
    reciprocal = 1 / *p.out.scales;
  }
  if constexpr (kScaling == Scaling::row) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      float v[kChunk];
      normed(i, v);
      largest = fmaxf(largest, largest_of(v));
    }
    const float scale = scale_of(over_row(largest, p.cluster, slots[1], Largest{}));
    reciprocal = 1 / scale;
    if (threadIdx.x == 0 && rank == 0) {
      p.out.scales[row * p.out.scale_row] = scale;
    }
  }
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    float v[kChunk];
    const int column = normed(i, v);
    store_chunk<Pair, kScaling == Scaling::row ? Scaling::tensor : kScaling>(
        p.out, row, column, v, column < end, reciprocal);
  }
  if (p.cluster > 1) {
    cluster_sync_relaxed();  // nobody leaves before all have delivered to it
  }
}

template <class Pair, Scaling kScaling>
Status launch_kept(const RmsNormParams& params, const LaunchShape& shape) {
  const int blocks = (params.columns + 127) / 128;
  const int part = (blocks + params.cluster - 1) / params.cluster * 16;  // chunks
  const int kept = (part + shape.threads - 1) / shape.threads;
  const auto kernel = kept <= 1   ? rmsnorm_quant_row<Pair, kScaling, 1>
                      : kept <= 2 ? rmsnorm_quant_row<Pair, kScaling, 2>
                      : kept <= 4 ? rmsnorm_quant_row<Pair, kScaling, 4>
                                  : rmsnorm_quant_row<Pair, kScaling, 0>;
  return launch_kernel(kernel, shape, params);
}

template <class Pair>
Status launch_scaling(const RmsNormParams& params, const LaunchShape& shape) {
  switch (params.out.scaling) {
    case Scaling::tensor:
      return launch_kept<Pair, Scaling::tensor>(params, shape);
    case Scaling::row:
      return launch_kept<Pair, Scaling::row>(params, shape);
    case Scaling::block:
      return launch_kept<Pair, Scaling::block>(params, shape);
    case Scaling::none:
      break;
  }
  return launch_kept<Pair, Scaling::none>(params, shape);
}

size_t workspace(const RmsNormQuantArgs&, const Plan&) { return 0; }

Status launch(const RmsNormQuantArgs& args, const Plan& plan, Stream stream) {
  const RmsNormParams params{.x = static_cast<const uint16_t*>(args.x.data),
                             .x_stride = args.x.stride,
                             .residual = static_cast<uint16_t*>(args.residual.data),
                             .residual_stride = args.residual.stride,
                             .weight = static_cast<const uint16_t*>(args.weight.data),
                             .columns = static_cast<int>(args.columns),
                             .epsilon = args.epsilon,
                             .cluster = plan.cluster,
                             .out = row_out(args.y)};
  const LaunchShape shape{.blocks = static_cast<int>(args.rows) * plan.cluster,
                          .threads = plan.threads,
                          .cluster = plan.cluster,
                          .stream = static_cast<cudaStream_t>(stream.native)};
  return args.x.dtype == DType::bf16 ? launch_scaling<__nv_bfloat162>(params, shape)
                                     : launch_scaling<__half2>(params, shape);
}

}  // namespace

const Kernel<RmsNormQuantArgs> rmsnorm_quant = {plan_rmsnorm_quant, rmsnorm_quant_candidates,
                                                workspace, launch};

}  // namespace weft::hopper
