// swiglu_quant on sm_90a.
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tile_schedule.h"
#include "ops/hopper_rows.cuh"
#include "ops/swiglu_quant/hopper_plan.h"

namespace weft::hopper {
namespace {

struct SwigluParams {
  const uint16_t* gate = nullptr;
  int64_t gate_stride = 0;
  const uint16_t* up = nullptr;
  int64_t up_stride = 0;
  int columns = 0;
  int parts = 1;  ///< blocks of a row
  Divisor by_parts;
  bool prefetches = false;  ///< all blocks come at once, and then wait: see begin_rows()
  RowOut out;
};

/// Chunks of a thread where a row is cut into parts.
constexpr int kPartSteps = 2;

/// Part blockIdx.x % parts of row blockIdx.x / parts. kSteps: chunks of a thread, or that it keeps
/// where a row is not cut.
template <class Pair, Scaling kScaling, int kSteps>
__global__ void __launch_bounds__(kSteps > 2 ? 512 : 1024)
    swiglu_quant_row(const __grid_constant__ SwigluParams p) {
  __shared__ RowSlots<float> slots;
  const int block = blockIdx.x;
  const int64_t row = p.by_parts.divide(block);
  const int threads = blockDim.x;
  const int steps =
      kScaling == Scaling::row ? (p.columns / kChunk + threads - 1) / threads : kSteps;
  const int first = (block - static_cast<int>(row) * p.parts) * kSteps * threads * kChunk;
  const uint16_t* gate = p.gate + row * p.gate_stride;
  const uint16_t* up = p.up + row * p.up_stride;
  begin_rows(p.prefetches, min(p.columns - first, steps * threads * kChunk), gate + first,
             up + first);
  const auto column_of = [&](int step) {
    return first + (step * threads + static_cast<int>(threadIdx.x)) * kChunk;
  };
  const auto load = [&](const uint16_t* from, int column) {
    return column < p.columns ? *reinterpret_cast<const uint4*>(from + column) : uint4{};
  };
  const auto product = [&](const uint4& gates, const uint4& ups, float(&v)[kChunk]) {
    float g[kChunk];
    unpack<Pair>(gates, g);
    unpack<Pair>(ups, v);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      // Within a few units in the last place; an IEEE division has a branch, which holds others up.
      v[i] *= __fdividef(g[i], 1 + __expf(-g[i]));
    }
  };
  if constexpr (kScaling == Scaling::row) {
    // A thread keeps kSteps chunks; what is beyond is read twice, the second time from a cache.
    float kept[kSteps][kChunk];
    float largest = 0;
    {
      uint4 gates[kSteps];
      uint4 ups[kSteps];
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        gates[i] = load(gate, column_of(i));
        ups[i] = load(up, column_of(i));
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        product(gates[i], ups[i], kept[i]);
        largest = fmaxf(largest, largest_of(kept[i]));
      }
    }
    for (int i = kSteps; i < steps; ++i) {
      float v[kChunk];
      product(load(gate, column_of(i)), load(up, column_of(i)), v);
      largest = fmaxf(largest, largest_of(v));
    }
    const float scale = scale_of(over_row(largest, 1, slots, Largest{}));
    const float reciprocal = reciprocal_of(scale);
    if (threadIdx.x == 0) {
      p.out.scales[row * p.out.scale_row] = scale;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      store_chunk<Pair, Scaling::tensor>(p.out, row, column_of(i), kept[i],
                                         column_of(i) < p.columns, reciprocal);
    }
    for (int i = kSteps; i < steps; ++i) {
      float v[kChunk];
      const int column = column_of(i);
      product(load(gate, column), load(up, column), v);
      store_chunk<Pair, Scaling::tensor>(p.out, row, column, v, column < p.columns, reciprocal);
    }
  } else {
    uint4 gates[kSteps];
    uint4 ups[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      gates[i] = load(gate, column_of(i));
      ups[i] = load(up, column_of(i));
    }
    const float reciprocal = kScaling == Scaling::tensor ? reciprocal_of(*p.out.scales) : 1;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float v[kChunk];
      product(gates[i], ups[i], v);
      store_chunk<Pair, kScaling>(p.out, row, column_of(i), v, column_of(i) < p.columns,
                                  reciprocal);
    }
  }
}

template <class Pair>
Status launch_scaling(const SwigluParams& params, const LaunchShape& shape) {
  switch (params.out.scaling) {
    case Scaling::tensor:
      return launch_kernel(swiglu_quant_row<Pair, Scaling::tensor, kPartSteps>, shape, params);
    case Scaling::row:
      return params.columns <= shape.threads * 2 * kChunk || shape.threads > 512
                 ? launch_kernel(swiglu_quant_row<Pair, Scaling::row, 2>, shape, params)
                 : launch_kernel(swiglu_quant_row<Pair, Scaling::row, 4>, shape, params);
    case Scaling::block:
      return launch_kernel(swiglu_quant_row<Pair, Scaling::block, kPartSteps>, shape, params);
    case Scaling::none:
      break;
  }
  return launch_kernel(swiglu_quant_row<Pair, Scaling::none, kPartSteps>, shape, params);
}

size_t workspace(const SwigluQuantArgs&, const Plan&) { return 0; }

Status launch(const SwigluQuantArgs& args, const Plan& plan, Stream stream) {
  const int chunks = plan.threads * kPartSteps;
  const int parts = args.y.scaling == Scaling::row
                        ? 1
                        : static_cast<int>((args.columns / kChunk + chunks - 1) / chunks);
  const SwigluParams params{.gate = static_cast<const uint16_t*>(args.gate.data),
                            .gate_stride = args.gate.stride,
                            .up = static_cast<const uint16_t*>(args.up.data),
                            .up_stride = args.up.stride,
                            .columns = static_cast<int>(args.columns),
                            .parts = parts,
                            .by_parts = Divisor(parts),
                            .prefetches = args.rows * parts <= stream.device->info().units,
                            .out = row_out(args.y)};
  const LaunchShape shape{.blocks = static_cast<int>(args.rows) * parts,
                          .threads = plan.threads,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)};
  return args.gate.dtype == DType::bf16 ? launch_scaling<__nv_bfloat162>(params, shape)
                                        : launch_scaling<__half2>(params, shape);
}

}  // namespace

const Kernel<SwigluQuantArgs> swiglu_quant = {plan_swiglu_quant, swiglu_quant_candidates, workspace,
                                              launch};

}  // namespace weft::hopper
