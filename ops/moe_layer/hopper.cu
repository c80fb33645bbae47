// moe_layer on sm_90a: the router's product, the draw and the order (ops/moe), both products of the
// slots with their experts, and the sum of a row's slots.
#include "ops/moe/hopper_prefill.h"
#include "ops/moe_layer/hopper_experts.cuh"
#include "ops/moe_layer/hopper_plan.h"

namespace weft::hopper {
namespace {

constexpr int kRouterRows = 32;
constexpr int kRouterColumns = 32;
constexpr int kRouterWarps = 8;
constexpr int kSumThreads = 256;

struct RouterProduct {
  ConstMatrix x, router;
  int32_t rows, experts, k;
  float* logits;  ///< [rows, experts]
  /// What is drawn unasked, where there is a shared expert: slot `chosen` of each row.
  bool shared;
  Drawn drawn;
};

__device__ inline void mma_f16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// A block has 32 rows and 32 experts, each warp an eighth of k. A lane has elements 8 (lane % 4)
/// .. + 7 of each 32 of its rows and columns, which is as good an order for a sum as another.
__global__ void __launch_bounds__(kRouterWarps * 32)
    multiply_router(const __grid_constant__ RouterProduct args) {
  begin_in_turn();
  __shared__ float parts[kRouterWarps][kRouterRows][kRouterColumns + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int first_row = static_cast<int>(blockIdx.x) * kRouterRows;
  const int first_column = static_cast<int>(blockIdx.y) * kRouterColumns;
  const auto load = [&](const ConstMatrix& m, int row, int rows, int at) {
    return row < rows && at < args.k
               ? *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(m.data) +
                                                 row * m.stride + at)
               : uint4{};
  };
  float sums[2][4][4] = {};
#pragma unroll 2
  for (int k = warp * 32; k < args.k; k += kRouterWarps * 32) {
    const int at = k + lane % 4 * 8;
    uint4 a[2][2];
    uint4 b[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[i / 2][i % 2] = load(args.x, first_row + i * 8 + lane / 4, args.rows, at);
      b[i] = load(args.router, first_column + i * 8 + lane / 4, args.experts, at);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 low{a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y};
      const uint4 high{a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        mma_f16(sums[i][j], low, b[j].x, b[j].y);
        mma_f16(sums[i][j], high, b[j].z, b[j].w);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        parts[warp][i * 16 + c / 2 * 8 + lane / 4][j * 8 + lane % 4 * 2 + c % 2] = sums[i][j][c];
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < kRouterRows * kRouterColumns; i += kRouterWarps * 32) {
    const int row = first_row + i / kRouterColumns;
    const int column = first_column + i % kRouterColumns;
    if (row < args.rows && column < args.experts) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < kRouterWarps; ++w) {
        sum += parts[w][i / kRouterColumns][i % kRouterColumns];
      }
      args.logits[int64_t{row} * args.experts + column] = __half2float(__float2half_rn(sum));
    }
  }
  const int row = first_row + thread;
  if (args.shared && first_column == 0 && thread < kRouterRows && row < args.rows) {
    const int64_t slot = row * args.drawn.stride + args.drawn.chosen;
    args.drawn.ids[slot] = args.experts;
    args.drawn.weights[slot] = 1;
  }
}

struct LayerSum {
  const uint16_t* products;  ///< [slots, n]
  const float* weights;
  int32_t per_row, n;
  Matrix out;
};
/// A block a row, eight columns a thread at a time; products and sums are rounded each.
__global__ void __launch_bounds__(kSumThreads)
    sum_layer_slots(const __grid_constant__ LayerSum args) {
  begin_in_turn();
  const int64_t row = blockIdx.x;
  const int64_t first = row * args.per_row;
  auto* const out = static_cast<uint16_t*>(args.out.data) + row * args.out.stride;
  for (int c = 8 * static_cast<int>(threadIdx.x); c < args.n; c += 8 * kSumThreads) {
    __half2 sum[4] = {};
#pragma unroll 4
    for (int s = 0; s < args.per_row; ++s) {
      const __half2 weight = __float2half2_rn(args.weights[first + s]);
      const uint4 x = *reinterpret_cast<const uint4*>(args.products + (first + s) * args.n + c);
      const auto* pairs = reinterpret_cast<const __half2*>(&x);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[i] = __hadd2_rn(sum[i], __hmul2_rn(pairs[i], weight));
      }
    }
    *reinterpret_cast<uint4*>(out + c) = *reinterpret_cast<const uint4*>(sum);
  }
}

size_t workspace(const MoeLayerArgs& args, const Plan& /*plan*/) {
  return kCounterBytes + moe_layer_buffer_bytes(args, true);  // counters stay zero
}

template <int kRows, int kCluster>
Status multiply(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, const PrefillDraw& drawn,
                Stream stream) {
  const auto slots = static_cast<int32_t>(args.slots_of_row());
  const auto hidden = static_cast<int32_t>(args.hidden);
  const auto inner = static_cast<int32_t>(args.inner);
  const ConstMatrix between{buffers.between.data, DType::f16, buffers.between.stride};
  WEFT_TRY(
      (launch_layer_experts<LayerTile<kRows, kCluster, true>>({.a = args.x,
                                                               .drawn = drawn,
                                                               .per_row = slots,
                                                               .n = inner,
                                                               .k = hidden,
                                                               .out = buffers.between},
                                                              {&args.gate, &args.up}, stream)));
  return launch_layer_experts<LayerTile<kRows, kCluster, false>>(
      {.a = between, .drawn = drawn, .n = hidden, .k = inner, .out = buffers.products},
      {&args.down}, stream);
}

Status draw(const MoeLayerArgs& args, const MoeLayerBuffers& buffers, Stream stream) {
  WEFT_TRY(
      launch_kernel(multiply_router,
                    {.blocks = static_cast<int>(ceil_div(args.rows, int64_t{kRouterRows})),
                     .blocks_y = static_cast<int>(ceil_div(args.experts, int64_t{kRouterColumns})),
                     .threads = kRouterWarps * 32,
                     .overlaps = true,
                     .stream = static_cast<cudaStream_t>(stream.native)},
                    RouterProduct{.x = args.x,
                                  .router = args.router,
                                  .rows = static_cast<int32_t>(args.rows),
                                  .experts = static_cast<int32_t>(args.experts),
                                  .k = static_cast<int32_t>(args.hidden),
                                  .logits = buffers.logits,
                                  .shared = args.shared,
                                  .drawn = buffers.drawn}));
  return prefill_route({.logits = {buffers.logits, DType::f32, args.experts},
                        .experts = args.experts,
                        .drawn = buffers.drawn},
                       args.rows, stream);
}

Status launch_moe_layer(const MoeLayerArgs& args, const Plan& plan, Stream stream) {
  auto* const memory = static_cast<std::byte*>(args.workspace.data) + kCounterBytes;
  const MoeLayerBuffers buffers(args, memory, true);
  const auto native = static_cast<cudaStream_t>(stream.native);
  if (args.ids == nullptr) {
    WEFT_TRY(draw(args, buffers, stream));
  }
  const PrefillDraw drawn{.ids = buffers.drawn.ids,
                          .weights = buffers.drawn.weights,
                          .experts = args.all(),
                          .chosen = args.slots_of_row(),
                          .order = buffers.order};
  WEFT_TRY(prefill_sort(drawn, args.rows, true, stream));
  const auto products = plan.tile_m == 144  ? multiply<144, 2>
                        : plan.cluster == 1 ? multiply<192, 1>
                                            : multiply<192, 2>;
  WEFT_TRY(products(args, buffers, drawn, stream));
  return launch_kernel(sum_layer_slots,
                       {.blocks = static_cast<int>(args.rows),
                        .threads = kSumThreads,
                        .overlaps = true,
                        .stream = native},
                       LayerSum{.products = static_cast<const uint16_t*>(buffers.products.data),
                                .weights = buffers.drawn.weights,
                                .per_row = static_cast<int32_t>(args.slots_of_row()),
                                .n = static_cast<int32_t>(args.hidden),
                                .out = args.out});
}

}  // namespace

const Kernel<MoeLayerArgs> moe_layer = {plan_moe_layer, moe_layer_candidates, workspace,
                                        launch_moe_layer};

}  // namespace weft::hopper
