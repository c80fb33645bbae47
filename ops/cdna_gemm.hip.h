// What the AMD kernels of tiled matrix products do when their sums are complete.
#pragma once

#include "arch/cdna/gemm.hip.h"
#include "ops/cdna_gemm.h"

namespace weft::cdna {

/// Where this workgroup's tile begins, and which part of k it takes.
struct GemmPlace {
  int m0;
  int n0;
  int split;
};
template <class Shape>
WEFT_GPU GemmPlace gemm_place(const GemmTask& task) {
  const Place place = place_of(workgroup_index(), task.tiles_m, task.tiles_n, task.splits);
  return {.m0 = place.tile_m * Shape::kM, .n0 = place.tile_n * Shape::kN, .split = place.split};
}

/// Writes the tile, or leaves its sums to the last workgroup that shares it. `kPaired`: how the
/// sums lie. `lds`: any 4 bytes, free to use.
template <class T, bool kPaired, class Shape>
WEFT_GPU void finish_gemm(const GemmTask& task, const GemmPlace& place, Sums<Shape>& sums,
                          LdsBytes* lds, bool accumulate = false) {
  if (task.splits > 1) {
    const int tile = place.m0 / Shape::kM * task.tiles_n + place.n0 / Shape::kN;
    const int64_t tile_sums = int64_t{Shape::kM} * Shape::kN / 4;
    if (!join_splits(sums, static_cast<f32x4*>(task.partial) + tile * task.splits * tile_sums,
                     task.tickets + tile, place.split, task.splits, lds)) {
      return;
    }
  }
  write_tile<kPaired>(sums,
                      &at<T>(task.out, place.m0 * task.out_stride + place.n0 * int64_t{sizeof(T)}),
                      task.out_stride, task.m - place.m0, task.n - place.n0, accumulate);
}

}  // namespace weft::cdna
