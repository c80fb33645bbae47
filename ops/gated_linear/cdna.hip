// gated_linear: the tiled product (arch/cdna/gemm.hip.h) with a tile of b that is half gate and
// half up, so that a lane has both sums of a column and multiplies them in f32.
#include "ops/gated_linear/cdna.h"

#include "ops/cdna_linear.hip.h"

using namespace weft;
using namespace weft::cdna;

namespace {

/// The rows of gate, then those of up.
template <class Tile>
class Both {
 public:
  template <int kStrips, bool kPaired>
  using Reader = typename Tile::template Reader<kStrips, kPaired>;

  __device__ __attribute__((always_inline)) Both(const Tile& gate, const Tile& up)
      : gate_(gate), up_(up) {}
  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* lds) {
    gate_.fetch(k_block, lds);
    up_.fetch(k_block, lds + kOfUp);
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
    gate_.publish(lds);
    up_.publish(lds + kOfUp);
  }

 private:
  static constexpr int kOfUp = kGatedLinearTile * kStripBytes;
  Tile gate_;
  Tile up_;
};

template <class A, class W>
WEFT_GPU void gated_linear(const GatedLinearParams& p) {
  // A wave has all columns of its rows.
  using Shape = TileShape<kGatedLinearTile, 2 * kGatedLinearTile, 4, 1>;
  using Out = TileShape<kGatedLinearTile, kGatedLinearTile, 4, 1>;
  using Of = LinearOf<A, W>;
  using Tile = typename Of::template Tile<kGatedLinearTile>;
  __shared__ __attribute__((aligned(1024))) char shared[Shape::kLdsBytes];
  auto* lds = (LdsBytes*)shared;
  const GemmTask& task = p.task;
  const GemmPlace place = gemm_place<Out>(task);
  RowMajorTile<Shape::kM, true> a(&at<char>(task.a, place.m0 * task.a_stride), task.a_stride,
                                  task.m - place.m0, task.k * static_cast<int>(sizeof(A)));
  const int row_bytes = task.k * static_cast<int>(sizeof(W));
  const int columns = task.n - place.n0;
  Both<Tile> b(Tile(&at<char>(task.b, place.n0 * task.b_stride), task.b_stride, columns, row_bytes),
               Tile(&at<char>(p.up, place.n0 * p.up_stride), p.up_stride, columns, row_bytes));
  Sums<Shape> sums;
  Of::multiply(a, b, task.k, lds, sums);

  Sums<Out> out;
#pragma unroll
  for (int t = 0; t < Out::kStripsN; ++t) {
    const int n = place.n0 + column_of<Out>(t);
    const f32x4 gate_bias = load_four<W>(p.gate_bias, task.n, n);
    const f32x4 up_bias = load_four<W>(p.up_bias, task.n, n);
#pragma unroll
    for (int i = 0; i < Out::kStripsM; ++i) {
      const f32x4 gate = sums.of[t][i] + gate_bias;
      const f32x4 up = sums.of[t + Out::kStripsN][i] + up_bias;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        out.of[t][i][r] = activate(p.activation, gate[r]) * up[r];
      }
    }
  }
  const int rows = task.m - place.m0;
  const int64_t row = place.m0 * task.out_stride;
  if (p.out_bf16 != 0) {
    write_tile<true>(out, &at<bf16_t>(task.out, row + place.n0 * int64_t{sizeof(bf16_t)}),
                     task.out_stride, rows, columns);
  } else {
    write_tile<true>(out, &at<float>(task.out, row + place.n0 * int64_t{sizeof(float)}),
                     task.out_stride, rows, columns);
  }
}

}  // namespace

#define KERNEL(a, w)                                                                            \
  extern "C" __global__ __launch_bounds__(256,                                                  \
                                          1) void gated_linear_##a##_##w(GatedLinearParams p) { \
    gated_linear<a##_t, w##_t>(p);                                                              \
  }
KERNEL(bf16, bf16)
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(f32, f16)
