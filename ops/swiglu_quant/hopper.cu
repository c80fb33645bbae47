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
  int rows = 0;
  int columns = 0;
  int parts = 1;  ///< blocks of a row
  Divisor by_parts;
  Ahead ahead = Ahead::nothing;
  RowOut out;
};

/// Chunks of a thread where a row is cut into parts.
constexpr int kPartSteps = 2;
/// Threads of at most 64 registers that a multiprocessor holds.
constexpr int kThreadsAtOnce = 1024;

/// Zeros past the end of a row.
__device__ inline uint4 load_chunk(const uint16_t* row, int column, int columns) {
  return column < columns ? *reinterpret_cast<const uint4*>(row + column) : uint4{};
}

template <class Pair>
__device__ void product(const uint4& gates, const uint4& ups, float (&v)[kChunk]) {
  float g[kChunk];
  unpack<Pair>(gates, g);
  unpack<Pair>(ups, v);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    // Within a few units in the last place; an IEEE division has a branch, which holds others up.
    v[i] *= __fdividef(g[i], 1 + __expf(-g[i]));
  }
}

/// Chunks of a thread: of one row, at column_of(0) and on.
template <int kSteps, class ColumnOf>
__device__ void load_chunks(const uint16_t* gate, const uint16_t* up, const ColumnOf& column_of,
                            int columns, uint4 (&gates)[kSteps], uint4 (&ups)[kSteps]) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    gates[i] = load_chunk(gate, column_of(i), columns);
    ups[i] = load_chunk(up, column_of(i), columns);
  }
}
/// Their products, and the largest of them.
template <class Pair, int kSteps>
__device__ float products(const uint4 (&gates)[kSteps], const uint4 (&ups)[kSteps],
                          float (&values)[kSteps][kChunk]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    product<Pair>(gates[i], ups[i], values[i]);
    largest = fmaxf(largest, largest_of(values[i]));
  }
  return largest;
}
/// Stores them, and the scale of their row, whose largest number is `largest`. Returns the scale's
/// reciprocal.
template <class Pair, int kSteps, class ColumnOf>
__device__ float store_products(const SwigluParams& p, int64_t row, const ColumnOf& column_of,
                                const float (&values)[kSteps][kChunk], float largest) {
  const float reciprocal = store_row_scale(p.out, row, largest, threadIdx.x == 0);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    store_chunk<Pair, Scaling::tensor>(p.out, row, column_of(i), values[i],
                                       column_of(i) < p.columns, reciprocal);
  }
  return reciprocal;
}

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
  begin_rows(p.ahead, min(p.columns - first, steps * threads * kChunk), gate + first, up + first);
  const auto column_of = [&](int step) {
    return first + (step * threads + static_cast<int>(threadIdx.x)) * kChunk;
  };
  if constexpr (kScaling == Scaling::row) {
    // A thread keeps kSteps chunks; what is beyond is read twice, the second time from a cache.
    uint4 gates[kSteps];
    uint4 ups[kSteps];
    float kept[kSteps][kChunk];
    load_chunks(gate, up, column_of, p.columns, gates, ups);
    float largest = products<Pair>(gates, ups, kept);
    for (int i = kSteps; i < steps; ++i) {
      float v[kChunk];
      product<Pair>(load_chunk(gate, column_of(i), p.columns),
                    load_chunk(up, column_of(i), p.columns), v);
      largest = fmaxf(largest, largest_of(v));
    }
    const float reciprocal =
        store_products<Pair>(p, row, column_of, kept, over_row(largest, 1, slots, Largest{}));
    for (int i = kSteps; i < steps; ++i) {
      float v[kChunk];
      const int column = column_of(i);
      product<Pair>(load_chunk(gate, column, p.columns), load_chunk(up, column, p.columns), v);
      store_chunk<Pair, Scaling::tensor>(p.out, row, column, v, column < p.columns, reciprocal);
    }
  } else {
    uint4 gates[kSteps];
    uint4 ups[kSteps];
    load_chunks(gate, up, column_of, p.columns, gates, ups);
    const float reciprocal = kScaling == Scaling::tensor ? reciprocal_of(*p.out.scales) : 1;
    float scales[kSteps];  // of blocks
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float v[kChunk];
      product<Pair>(gates[i], ups[i], v);
      scales[i] = store_chunk<Pair, kScaling>(p.out, row, column_of(i), v, column_of(i) < p.columns,
                                              reciprocal);
    }
    if constexpr (kScaling == Scaling::block) {
      store_scales(p.out, row, first, p.columns, scales);
    }
  }
}

/// Rows blockIdx.x, blockIdx.x + gridDim.x and so on, each with a scale and no longer than
/// kPartSteps chunks of each thread: more rows than there are places for blocks. A block's next row
/// is on its way while it finds a row's scale and stores its results.
template <class Pair>
__global__ void __launch_bounds__(1024) swiglu_quant_rows(const __grid_constant__ SwigluParams p) {
  __shared__ RowSlots<float> slots[2];  // in turn: who writes into one again has passed the other
  const auto column_of = [&](int step) {
    return (step * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kChunk;
  };
  uint4 gates[kPartSteps];
  uint4 ups[kPartSteps];
  const auto load = [&](int64_t row) {
    load_chunks(p.gate + row * p.gate_stride, p.up + row * p.up_stride, column_of, p.columns, gates,
                ups);
  };
  begin_rows(Ahead::first, p.columns, p.gate + blockIdx.x * p.gate_stride,
             p.up + blockIdx.x * p.up_stride);
  load(blockIdx.x);
  int turn = 0;
  for (int row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    float kept[kPartSteps][kChunk];
    const float largest = products<Pair>(gates, ups, kept);
    if (const int next = row + static_cast<int>(gridDim.x); next < p.rows) {
      load(next);
    }
    store_products<Pair>(p, row, column_of, kept, over_row(largest, 1, slots[turn], Largest{}));
  }
}

template <class Pair>
Status launch_scaling(const SwigluParams& params, const LaunchShape& shape) {
  switch (params.out.scaling) {
    case Scaling::tensor:
      return launch_kernel(swiglu_quant_row<Pair, Scaling::tensor, kPartSteps>, shape, params);
    case Scaling::row:
      return shape.blocks < params.rows ? launch_kernel(swiglu_quant_rows<Pair>, shape, params)
             : params.columns <= shape.threads * kPartSteps * kChunk || shape.threads > 512
                 ? launch_kernel(swiglu_quant_row<Pair, Scaling::row, kPartSteps>, shape, params)
                 : launch_kernel(swiglu_quant_row<Pair, Scaling::row, 2 * kPartSteps>, shape,
                                 params);
    case Scaling::block:
      return launch_kernel(swiglu_quant_row<Pair, Scaling::block, kPartSteps>, shape, params);
    case Scaling::none:
      break;
  }
  return launch_kernel(swiglu_quant_row<Pair, Scaling::none, kPartSteps>, shape, params);
}

size_t workspace(const SwigluQuantArgs&, const Plan&) { return 0; }

Status launch(const SwigluQuantArgs& args, const Plan& plan, Stream stream) {
  const bool row_scales = args.y.scaling == Scaling::row;
  const int columns_at_once = plan.threads * kPartSteps * kChunk;
  const int parts = row_scales ? 1 : ceil_div(static_cast<int>(args.columns), columns_at_once);
  const int units = stream.device->info().units;
  const int places = units * (kThreadsAtOnce / plan.threads);
  const int blocks = static_cast<int>(args.rows) * parts;
  const bool resident = row_scales && blocks > places && args.columns <= columns_at_once;
  const SwigluParams params{.gate = static_cast<const uint16_t*>(args.gate.data),
                            .gate_stride = args.gate.stride,
                            .up = static_cast<const uint16_t*>(args.up.data),
                            .up_stride = args.up.stride,
                            .rows = static_cast<int>(args.rows),
                            .columns = static_cast<int>(args.columns),
                            .parts = parts,
                            .by_parts = Divisor(parts),
                            .ahead = blocks <= units    ? Ahead::all
                                     : blocks <= places ? Ahead::first
                                                        : Ahead::nothing,
                            .out = row_out(args.y)};
  const LaunchShape shape{.blocks = resident ? places : blocks,
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
