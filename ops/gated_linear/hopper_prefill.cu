// gated_linear for many rows on sm_90a: gemm_bf16's kernel with a tile of b that is half gate and
// half up, so that a thread has both sums of a column and multiplies them in f32.
// Rows in f32 go through a kernel of their own, whose threads have both sums too.
#include <algorithm>
#include <cstdlib>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/gated_linear/hopper_prefill.h"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {
namespace {

constexpr int kBlock = kRowBytes / Bf16::kBytes;  ///< elements of k in a stage

/// kOutColumns: of out, in a tile. Two blocks along n share the tile of a.
template <int kOutColumns>
struct GatedTile : GemmTile<128, 2 * kOutColumns, 2, 2, true> {
  static constexpr int kColumns = kOutColumns;
};
template <class Tile>
using GatedShared = GemmShared<Tile, 0, staging_bytes<Tile::kColumns>()>;

/// The tiles that are compiled: X(columns of out, cycles), as gemm_bf16's.
#define WEFT_GATED_TILES(X) X(128, 1130) X(112, 980) X(96, 870) X(64, 600)
#define WEFT_TILE(COLUMNS, CYCLES) {128, 2 * (COLUMNS), 2, true, 1, CYCLES},
constexpr TileChoice kTiles[] = {WEFT_GATED_TILES(WEFT_TILE)};
#undef WEFT_TILE

/// What a tile needs beside the maps.
struct Params {
  const uint16_t* gate_bias = nullptr;  ///< bf16 [n], or null
  const uint16_t* up_bias = nullptr;
  int n = 0;
  int gate_plane = 0;  ///< of the stack of weights; up is the other
};

__device__ float bias_at(const uint16_t* bias, int column, int n) {
  return bias != nullptr && column < n ? __uint_as_float(uint32_t{bias[column]} << 16) : 0.0f;
}

/// The feeder of weights, one warp; see feed_tiles(). Their stack has two planes, gate and up.
template <class Tile, class Shared>
__device__ void feed_weights(const Shared& shared, const TileSchedule& schedule, TileWork work,
                             const CUtensorMap& weights, int gate_plane) {
  const bool chosen = elect_one();
  typename Shared::Cursor cursor;
  int round = 0;
  do {
    for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance()) {
      shared.empty(cursor.slot).wait(cursor.parity ^ 1);
      if (chosen) {
        Barrier& full = shared.full(cursor.slot);
        full.arrive_expect(Shared::kBBytes);
        for (int half = 0; half < 2; ++half) {
          load_plane_tile(shared.b(cursor.slot) + half * Tile::kColumns * kRowBytes, weights,
                          k * kBlock, work.n * Tile::kColumns, gate_plane ^ half, full);
        }
      }
    }
  } while (tile_schedule<Tile>(schedule).work(blockIdx.x / Tile::cluster, ++round, cluster_rank(),
                                              work));
}

template <class Tile, Activation kActivation>
__global__ void __launch_bounds__(Tile::threads, 1)
    gated_linear_tile(const __grid_constant__ RowBoxes a,
                      const __grid_constant__ CUtensorMap weights,
                      const __grid_constant__ CUtensorMap out,
                      const __grid_constant__ TileSchedule schedule,
                      const __grid_constant__ Params params) {
  using Shared = GatedShared<Tile>;
  constexpr int kColumns = Tile::kColumns;
  let_next_begin();
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (warp == Tile::warps && elect_one()) {
    prefetch_maps<Tile::a_rows>(a);
    prefetch_map(weights);
  }
  shared.prepare(warp, 2);
  const TileWork first = first_work<Tile>(schedule, warp);
  shared.wait_prepared();
  if (warp != Tile::warps) {  // weights are not written meanwhile
    wait_for_earlier();
  }

  if (warp >= Tile::warps) {
    lower_registers<Tile::feeder_registers>();
    if (warp == Tile::warps) {
      feed_weights<Tile>(shared, schedule, first, weights, params.gate_plane);
    } else if (warp == Tile::warps + 1) {
      feed_tiles<Tile, Feed::common>(shared, schedule, first, a, kBlock);
    }
  } else {
    raise_registers<Tile::registers>();
    const int warpgroup = warp / 4;
    typename Shared::Cursor cursor;
    TileWork work;
    for (int round = 0; schedule.work(blockIdx.x / Tile::cluster, round, cluster_rank(), work);
         ++round) {
      float sums[Tile::n / 2];
      multiply_bf16<Tile>(shared, work, warpgroup * 64, lane, cursor, sums);

      // Column c's gate and up are sums[i] and sums[i + kColumns / 2].
      float(&gated)[kColumns / 2] = reinterpret_cast<float(&)[kColumns / 2]>(sums);
      const int column = work.n * kColumns;
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        float gate = sums[i];
        float up = sums[i + kColumns / 2];
        if (params.gate_bias != nullptr) {
          const int c = column + i / 4 * 8 + lane % 4 * 2 + i % 2;
          gate += bias_at(params.gate_bias, c, params.n);
          up += bias_at(params.up_bias, c, params.n);
        }
        gated[i] = up * __fdividef(gate, 1 + __expf(-exponent_of<kActivation>(gate)));
      }
      store_rows<kColumns>(shared.staging(warp), out,
                           work.m * Tile::m + warpgroup * 64 + warp % 4 * 16, column, gated, lane);
    }
    if (lane == 0) {
      wait_stores_read<0>();
    }
    __syncwarp();
  }
  leave_cluster<Tile>();
}

/// 32 columns of out a block: a group of gate and one of up.
template <class W, Activation kActivation>
__global__ void __launch_bounds__(F32Tile::kThreads)
    gated_linear_f32(const __grid_constant__ GatedLinearArgs args, int64_t rows, int row_tiles) {
  constexpr int kThreadColumns = F32Tile::kThreadColumns;
  const int64_t row = int64_t{blockIdx.x % row_tiles} * F32Tile::kRows;
  const int64_t column = int64_t{blockIdx.x / row_tiles} * F32Tile::kColumns;
  const F32Group groups[2] = {{args.gate, column}, {args.up, column}};
  float sums[F32Tile::kThreadRows][2 * kThreadColumns];
  multiply_f32<W>(args.a, row, rows, groups, args.n, args.k, sums);

  float gate_bias[kThreadColumns];
  float up_bias[kThreadColumns];
  load_bias<W>(args.gate_bias, column, args.n, gate_bias);
  load_bias<W>(args.up_bias, column, args.n, up_bias);
  each_f32<kThreadColumns>(row, rows, column, args.n, [&](int i, int j, int64_t r, int64_t c) {
    const float gate = sums[i][j] + gate_bias[j];
    const float up = sums[i][j + kThreadColumns] + up_bias[j];
    static_cast<float*>(args.out.data)[r * args.out.stride + c] =
        up * gate / (1 + expf(-exponent_of<kActivation>(gate)));
  });
}

template <class W, Activation kActivation>
Status launch_f32(const GatedLinearArgs& args, int64_t rows, Stream stream) {
  const int row_tiles = ceil_div(static_cast<int>(rows), F32Tile::kRows);
  return launch_kernel(gated_linear_f32<W, kActivation>,
                       {.blocks = row_tiles * ceil_div(static_cast<int>(args.n), F32Tile::kColumns),
                        .threads = F32Tile::kThreads,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, rows, row_tiles);
}

/// With all in bf16.
template <class Tile>
Status launch_tile(const GatedLinearArgs& args, int64_t rows, const TileSchedule& schedule,
                   Stream stream) {
  WEFT_ASSIGN(const RowBoxes a, row_boxes({.data = args.a.data,
                                           .format = MapFormat::bf16,
                                           .rows = rows,
                                           .columns = args.k,
                                           .stride_bytes = args.a.stride * 2,
                                           .box_rows = Tile::a_rows,
                                           .box_columns = kBlock}));
  const auto* gate = static_cast<const char*>(args.gate.data);
  const auto* up = static_cast<const char*>(args.up.data);
  WEFT_ASSIGN(const CUtensorMap weights, tensor_map({.data = std::min(gate, up),
                                                     .format = MapFormat::bf16,
                                                     .rows = args.n,
                                                     .columns = args.k,
                                                     .stride_bytes = args.gate.stride * 2,
                                                     .box_rows = Tile::kColumns,
                                                     .box_columns = kBlock,
                                                     .planes = 2,
                                                     .plane_bytes = std::abs(up - gate)}));
  WEFT_ASSIGN(const CUtensorMap out,
              out_map<Tile::kColumns>(args.out.data, rows, args.n, args.out.stride));
  const auto kernel = args.activation == Activation::silu
                          ? gated_linear_tile<Tile, Activation::silu>
                          : gated_linear_tile<Tile, Activation::gelu_tanh>;
  return launch_kernel(kernel,
                       {.blocks = schedule.blocks(),
                        .threads = Tile::threads,
                        .cluster = Tile::cluster,
                        .shared_bytes = GatedShared<Tile>::kBytes,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       a, weights, out, schedule,
                       Params{static_cast<const uint16_t*>(args.gate_bias.data),
                              static_cast<const uint16_t*>(args.up_bias.data),
                              static_cast<int>(args.n), gate < up ? 0 : 1});
}

std::string_view refuse_f32(const GatedLinearArgs& args) {
  if (args.out.dtype != DType::f32) {
    return "the result must be f32 as the rows are";
  }
  if (args.k % 8 != 0 || args.a.stride % 8 != 0 || args.gate.stride % 8 != 0 ||
      args.up.stride % 8 != 0) {
    return "k and strides must be multiples of 8";
  }
  return {};
}

}  // namespace

std::string_view refuse_prefill_gated_linear(const GatedLinearArgs& args) {
  if (args.activation == Activation::none) {
    return "the activation must be SiLU or GELU";
  }
  if (args.a.dtype == DType::f32) {
    return refuse_f32(args);
  }
  if (args.a.dtype != DType::bf16 || args.gate.dtype != DType::bf16 ||
      args.out.dtype != DType::bf16) {
    return "all must be bf16 where rows are not f32";
  }
  if ((args.gate_bias.data == nullptr) != (args.up_bias.data == nullptr)) {
    return "both biases or none";
  }
  if (args.n % 8 != 0 || args.a.stride % 8 != 0 || args.gate.stride % 8 != 0 ||
      args.up.stride != args.gate.stride || args.out.stride % 8 != 0) {
    return "n and strides must be multiples of 8, the weights' strides the same";
  }
  return {};
}

Status prefill_gated_linear(const GatedLinearArgs& args, int64_t rows, Stream stream) {
  if (args.a.dtype == DType::f32) {
    return with_weights(args.gate.dtype, [&](auto w) {
      using W = decltype(w);
      return args.activation == Activation::silu
                 ? launch_f32<W, Activation::silu>(args, rows, stream)
                 : launch_f32<W, Activation::gelu_tanh>(args, rows, stream);
    });
  }
  const TiledProduct product{rows, 2 * args.n, ceil_div(static_cast<int>(args.k), kBlock), kBlock};
  const DeviceInfo& device = stream.device->info();
  const Plan plan = choose_tile(product, kTiles, device);
  const TileSchedule schedule = schedule_of(product, *find_tile(plan, kTiles), device);
#define WEFT_TILE(COLUMNS, CYCLES)                                        \
  if (plan.tile_n == 2 * (COLUMNS)) {                                     \
    return launch_tile<GatedTile<COLUMNS>>(args, rows, schedule, stream); \
  }
  WEFT_GATED_TILES(WEFT_TILE)
#undef WEFT_TILE
  return {};
}

}  // namespace weft::hopper
