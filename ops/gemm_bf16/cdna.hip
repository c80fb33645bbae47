// gemm_bf16: the tiled product (arch/cdna/gemm.hip.h) of bf16, 64 of k to a block.
#include "ops/gemm_bf16/cdna.h"

#include "ops/cdna_gemm.hip.h"

using namespace weft::cdna;

namespace {

template <class T, class Shape>
WEFT_GPU void gemm_bf16(const GemmBf16Params& p) {
  __shared__ __attribute__((aligned(1024))) char lds[Shape::kLdsBytes];
  const GemmTask& task = p.task;
  const GemmPlace place = gemm_place<Shape>(task);
  const int row_bytes = task.k * static_cast<int>(sizeof(bf16_t));
  using TileA = RowMajorTile<Shape::kM, true>;
  using TileB = RowMajorTile<Shape::kN, true>;
  TileA a(&at<char>(task.a, place.m0 * task.a_stride), task.a_stride, task.m - place.m0, row_bytes);
  TileB b(&at<char>(task.b, place.n0 * task.b_stride), task.b_stride, task.n - place.n0, row_bytes);
  const int blocks = ceil_div(row_bytes, kStripBytes);

  Sums<Shape> sums;
  const StripPairs<Shape, TileA, TileB> pairs;
  walk_k<Shape>(a, b, (LdsBytes*)lds, blocks * place.split / task.splits,
                blocks * (place.split + 1) / task.splits, [&](const LdsBytes* stage, int) {
                  const Priority priority;
                  pairs.visit(
                      stage,
                      [&](int t, int i, const Strip& b_strip, const Strip& a_strip) {
                        sums.of[t][i] = mma<Format::bf16>(b_strip, a_strip, sums.of[t][i]);
                      },
                      [](int) {});
                });

  finish_gemm<T, TileB::kPairs>(task, place, sums, (LdsBytes*)lds, p.accumulate != 0);
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
