// rmsnorm_quant on sm_90a.
#include <bit>
#include <type_traits>

#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
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
  float per_column = 0;  ///< 1 / columns
  float epsilon = 0;
  int cluster = 1;        ///< blocks that share a row: 1, 2, 4 or 8
  int cluster_shift = 0;  ///< its logarithm
  int part = 0;           ///< columns of each block, whole blocks of scales
  Ahead ahead = Ahead::nothing;
  RowOut out;
};

/// Threads of a block whose threads keep so many chunks, and blocks that a multiprocessor shall
/// hold, so that one's loads run under another's sum and stores.
constexpr int most_threads(int kept) { return kept > 2 ? 512 : 1024; }
constexpr int blocks_at_once(int kept) { return kept > 2 ? 2 : 1; }

/// Between these the largest |h w| is as precise as a product can be; else v itself is looked at.
constexpr float kLeastProduct = 1e-30F;
constexpr float kMostProduct = 1e38F;

/// Row blockIdx.x / cluster. A thread keeps kKept chunks in registers: those at (i blockDim +
/// thread) of its block's part of the row. What does not fit (kKept is 0) is read again.
template <class Pair, Scaling kScaling, int kKept>
__global__ void __launch_bounds__(most_threads(kKept), blocks_at_once(kKept))
    rmsnorm_quant_row(const __grid_constant__ RmsNormParams p) {
  // Where a row has a scale, the largest |h w| is found with the sum of squares, before the factor
  // that both make v with is known: one exchange between threads instead of two.
  constexpr bool kRowScale = kScaling == Scaling::row;
  __shared__ RowSlots<std::conditional_t<kRowScale, float2, float>> slots;
  __shared__ RowSlots<float> slots_again;  // where it is to be found once more
  const int64_t row = blockIdx.x >> p.cluster_shift;
  const int rank = blockIdx.x & (p.cluster - 1);
  const int begin = rank * p.part;
  const int end = min(p.columns, begin + p.part);
  const uint16_t* x = p.x + row * p.x_stride;
  uint16_t* residual = p.residual != nullptr ? p.residual + row * p.residual_stride : nullptr;
  // A row that is not kept is read twice, the second time from L2: more ahead would drive it out.
  const Ahead ahead = kKept == 0 && p.ahead == Ahead::first ? Ahead::nothing : p.ahead;
  begin_rows(ahead, end - begin, x + begin, p.weight + begin,
             residual != nullptr ? residual + begin : nullptr);
  const auto load = [](const uint16_t* from) { return *reinterpret_cast<const uint4*>(from); };

  float sum = 0;      // of squares
  float largest = 0;  // |h w|
  // h of a chunk, rounded, into `chunk`.
  const auto add_residual = [&](uint4& chunk, const uint4& rest, const uint4& weight) {
    float h[kChunk];
    unpack<Pair>(chunk, h);
    if (residual != nullptr) {
      float r[kChunk];
      unpack<Pair>(rest, r);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        h[i] += r[i];
      }
      chunk = pack<Pair>(h);
      unpack<Pair>(chunk, h);
    }
    float w[kChunk];
    unpack<Pair>(weight, w);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      sum += h[i] * h[i];
      if constexpr (kRowScale) {
        largest = fmaxf(largest, fabsf(h[i] * w[i]));
      }
    }
  };
  const auto write_back = [&](int column, const uint4& chunk) {
    if (residual != nullptr) {
      *reinterpret_cast<uint4*>(residual + column) = chunk;
    }
  };
  constexpr int kSteps = kKept > 0 ? kKept : 1;
  uint4 kept[kSteps] = {};
  // Asked for early where that leaves registers for more blocks; else they come from L2.
  constexpr bool kEarlyWeights = kKept == 1 || kKept == 2;
  uint4 weights[kSteps] = {};
  // After the first loads are under way; see cluster_wait() below.
  const auto prepare = [&] {
    if (p.cluster > 1) {
      if (threadIdx.x == 0) {
        slots.prepare();
        if constexpr (kRowScale) {
          slots_again.prepare();
        }
      }
      __syncwarp();
      cluster_arrive();
    }
  };
  const auto column_of = [&](int step) {
    return begin + (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
  };
  const int steps = kKept > 0 ? kKept : (p.part / kChunk + blockDim.x - 1) / blockDim.x;
  float tensor_scale = 1;
  if constexpr (kKept > 0) {
    // All loads before the first store, which may be to what they read.
    uint4 rest[kSteps] = {};
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (const int column = column_of(i); column < end) {
        kept[i] = load(x + column);
        if (residual != nullptr) {
          rest[i] = load(residual + column);
        }
      }
    }
    if constexpr (kEarlyWeights) {
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        if (const int column = column_of(i); column < end) {
          weights[i] = load(p.weight + column);
        }
      }
    }
    if constexpr (kScaling == Scaling::tensor) {
      tensor_scale = *p.out.scales;
    }
    prepare();
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (const int column = column_of(i); column < end) {
        add_residual(kept[i], rest[i],
                     kEarlyWeights || !kRowScale ? weights[i] : load(p.weight + column));
      }
    }
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (const int column = column_of(i); column < end) {
        write_back(column, kept[i]);
      }
    }
  } else {
    prepare();
    if constexpr (kScaling == Scaling::tensor) {
      tensor_scale = *p.out.scales;
    }
    for (int i = 0; i < steps; ++i) {
      if (const int column = column_of(i); column < end) {
        kept[0] = load(x + column);
        add_residual(kept[0], residual != nullptr ? load(residual + column) : uint4{},
                     kRowScale ? load(p.weight + column) : uint4{});
        write_back(column, kept[0]);
      }
    }
  }
  if (p.cluster > 1) {
    cluster_wait();  // all blocks run and have prepared their slots
  }
  if constexpr (kRowScale) {
    const float2 both = over_row(float2{sum, largest}, p.cluster, slots, SumAndLargest{});
    sum = both.x;
    largest = both.y;
  } else {
    sum = over_row(sum, p.cluster, slots, Sum{});
  }
  const float factor = rsqrtf(sum * p.per_column + p.epsilon);

  const auto normed = [&](int i, float(&v)[kChunk]) {
    const int column = column_of(i);
    uint4 h = kept[kKept > 0 ? i : 0];
    uint4 w = weights[kKept > 0 ? i : 0];
    if constexpr (kKept == 0) {
      h = column < end ? load((residual != nullptr ? residual : x) + column) : uint4{};
    }
    if constexpr (!kEarlyWeights) {
      w = column < end ? load(p.weight + column) : uint4{};
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
  float reciprocal = reciprocal_of(tensor_scale);
  if constexpr (kRowScale) {
    if (largest > kLeastProduct && largest < kMostProduct) {  // the same in all threads
      largest *= factor;
    } else {
      largest = 0;
#pragma unroll
      for (int i = 0; i < steps; ++i) {
        float v[kChunk];
        normed(i, v);
        largest = fmaxf(largest, largest_of(v));
      }
      largest = over_row(largest, p.cluster, slots_again, Largest{});
    }
    reciprocal = store_row_scale(p.out, row, largest, threadIdx.x == 0 && rank == 0);
  }
  constexpr Scaling kStored = kRowScale ? Scaling::tensor : kScaling;  // the scale is known
  float scales[kSteps] = {};                                           // of blocks
#pragma unroll
  for (int i = 0; i < steps; ++i) {
    float v[kChunk];
    const int column = normed(i, v);
    scales[kKept > 0 ? i : 0] =
        store_chunk<Pair, kStored>(p.out, row, column, v, column < end, reciprocal);
    if constexpr (kScaling == Scaling::block && kKept == 0) {
      store_scales(p.out, row, begin + i * static_cast<int>(blockDim.x) * kChunk, end, scales);
    }
  }
  if constexpr (kScaling == Scaling::block && kKept > 0) {
    store_scales(p.out, row, begin, end, scales);
  }
}

template <class Pair, Scaling kScaling>
Status launch_kept(const RmsNormParams& params, const LaunchShape& shape) {
  const int kept = (params.part / kChunk + shape.threads - 1) / shape.threads;
  const auto kernel = kept <= 1   ? rmsnorm_quant_row<Pair, kScaling, 1>
                      : kept <= 2 ? rmsnorm_quant_row<Pair, kScaling, 2>
                      : kept <= 4 && shape.threads <= most_threads(4)
                          ? rmsnorm_quant_row<Pair, kScaling, 4>
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
  constexpr int kBlock = static_cast<int>(kScaleBlock);
  const int blocks = ceil_div(static_cast<int>(args.columns), kBlock);
  const RmsNormParams params{
      .x = static_cast<const uint16_t*>(args.x.data),
      .x_stride = args.x.stride,
      .residual = static_cast<uint16_t*>(args.residual.data),
      .residual_stride = args.residual.stride,
      .weight = static_cast<const uint16_t*>(args.weight.data),
      .columns = static_cast<int>(args.columns),
      .per_column = 1 / static_cast<float>(args.columns),
      .epsilon = args.epsilon,
      .cluster = plan.cluster,
      .cluster_shift = std::countr_zero(static_cast<unsigned>(plan.cluster)),
      .part = ceil_div(blocks, plan.cluster) * kBlock,
      .ahead = args.rows * plan.cluster <= stream.device->info().units ? Ahead::all : Ahead::first,
      .out = row_out(args.y)};
  const LaunchShape shape{.blocks = static_cast<int>(args.rows) * plan.cluster,
                          .threads = plan.threads,
                          .cluster = plan.cluster,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)};
  return args.x.dtype == DType::bf16 ? launch_scaling<__nv_bfloat162>(params, shape)
                                     : launch_scaling<__half2>(params, shape);
}

}  // namespace

const Kernel<RmsNormQuantArgs> rmsnorm_quant = {plan_rmsnorm_quant, rmsnorm_quant_candidates,
                                                workspace, launch};

}  // namespace weft::hopper
