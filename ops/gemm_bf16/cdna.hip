// gemm_bf16: the tiled product (arch/cdna/gemm.hip.h) of bf16, 64 of k to a block.
#include "ops/gemm_bf16/cdna.h"

#include "arch/cdna/gemm.hip.h"

using namespace weft::cdna;

namespace {

template <class T, class Shape>
WEFT_GPU void gemm_bf16(const GemmBf16Params& p) {
  __shared__ __attribute__((aligned(1024))) char lds[Shape::kLdsBytes];
  const Place place = place_of(workgroup_index(), p.tiles_m, p.tiles_n, p.splits);
  const int m0 = place.tile_m * Shape::kM;
  const int n0 = place.tile_n * Shape::kN;
  const int row_bytes = p.k * static_cast<int>(sizeof(bf16_t));
  using TileA = RowMajorTile<Shape::kM, true>;
  using TileB = RowMajorTile<Shape::kN, true>;
  TileA a(&at<char>(p.a, m0 * p.a_stride), p.a_stride, p.m - m0, row_bytes);
  TileB b(&at<char>(p.b, n0 * p.b_stride), p.b_stride, p.n - n0, row_bytes);
  const int blocks = ceil_div(row_bytes, kStripBytes);

  Sums<Shape> sums;
  const StripPairs<Shape, TileA, TileB> pairs;
  walk_k<Shape>(a, b, (LdsBytes*)lds, blocks * place.split / p.splits,
                blocks * (place.split + 1) / p.splits, [&](const LdsBytes* stage, int) {
                  const Priority priority;
                  pairs.visit(
                      stage,
                      [&](int t, int i, const Strip& b_strip, const Strip& a_strip) {
                        sums.of[t][i] = mma<Format::bf16>(b_strip, a_strip, sums.of[t][i]);
                      },
                      [](int) {});
                });

  if (p.splits > 1) {
    const int tile = place.tile_m * p.tiles_n + place.tile_n;
    const int64_t tile_sums = int64_t{Shape::kM} * Shape::kN / 4;
    if (!join_splits(sums, static_cast<f32x4*>(p.partial) + tile * p.splits * tile_sums,
                     p.tickets + tile, place.split, p.splits, (LdsBytes*)lds)) {
      return;
    }
  }
  write_tile<TileB::kPairs>(sums, &at<T>(p.out, m0 * p.out_stride + n0 * int64_t{sizeof(T)}),
                            p.out_stride, p.m - m0, p.n - n0, p.accumulate != 0);
}

}  // namespace

// m x n of the tile, and how the four waves share it.
#define KERNELS(tile_m, tile_n, waves_m, waves_n)                         \
  extern "C" __global__ __launch_bounds__(                                \
      256, 1) void gemm_bf16_bf16_##tile_m##x##tile_n(GemmBf16Params p) { \
    gemm_bf16<bf16_t, TileShape<tile_m, tile_n, waves_m, waves_n>>(p);    \
  }                                                                       \
  extern "C" __global__ __launch_bounds__(                                \
      256, 1) void gemm_bf16_f32_##tile_m##x##tile_n(GemmBf16Params p) {  \
    gemm_bf16<float, TileShape<tile_m, tile_n, waves_m, waves_n>>(p);     \
  }
KERNELS(128, 128, 2, 2)
KERNELS(96, 128, 2, 2)
KERNELS(128, 96, 4, 1)
KERNELS(64, 128, 2, 2)
KERNELS(64, 64, 2, 2)
KERNELS(32, 64, 2, 2)
