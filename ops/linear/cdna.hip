// linear: the tiled product (arch/cdna/gemm.hip.h) of a chunk's rows, and what bends its sums.
#include "ops/linear/cdna.h"

#include "ops/cdna_linear.hip.h"

using namespace weft;
using namespace weft::cdna;

namespace {

template <class A, class W>
WEFT_GPU void linear(const LinearParams& p) {
  using Shape = TileShape<kLinearTile, kLinearTile, 2, 2>;
  using Of = LinearOf<A, W>;
  __shared__ __attribute__((aligned(1024))) char shared[Shape::kLdsBytes];
  auto* lds = (LdsBytes*)shared;
  const GemmTask& task = p.task;
  const GemmPlace place = gemm_place<Shape>(task);
  RowMajorTile<Shape::kM, true> a(&at<char>(task.a, place.m0 * task.a_stride), task.a_stride,
                                  task.m - place.m0, task.k * static_cast<int>(sizeof(A)));
  typename Of::template Tile<Shape::kN> b(&at<char>(task.b, place.n0 * task.b_stride),
                                          task.b_stride, task.n - place.n0,
                                          task.k * static_cast<int>(sizeof(W)));
  Sums<Shape> sums;
  Of::multiply(a, b, task.k, lds, sums);

#pragma unroll
  for (int t = 0; t < Shape::kStripsN; ++t) {
    const f32x4 bias = load_four<W>(p.bias, task.n, place.n0 + column_of<Shape>(t));
#pragma unroll
    for (int i = 0; i < Shape::kStripsM; ++i) {
      f32x4& x = sums.of[t][i];
      x = p.alpha * (x + bias);
      if (p.activation != Activation::none || p.soft_cap > 0) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          x[r] = activate(p.activation, x[r]);
          x[r] = p.soft_cap > 0 ? p.soft_cap * tanh_of(x[r] / p.soft_cap) : x[r];
        }
      }
    }
  }
  const int rows = task.m - place.m0;
  const int columns = task.n - place.n0;
  const int64_t row = place.m0 * task.out_stride;
  if (p.out_bf16 != 0) {
    write_tile<true>(sums, &at<bf16_t>(task.out, row + place.n0 * int64_t{sizeof(bf16_t)}),
                     task.out_stride, rows, columns);
  } else {
    write_tile<true>(sums, &at<float>(task.out, row + place.n0 * int64_t{sizeof(float)}),
                     task.out_stride, rows, columns, p.accumulate != 0);
  }
}

}  // namespace

#define KERNEL(a, w)                                                                      \
  extern "C" __global__ __launch_bounds__(256, 2) void linear_##a##_##w(LinearParams p) { \
    linear<a##_t, w##_t>(p);                                                              \
  }
KERNEL(bf16, bf16)
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(f32, f16)
