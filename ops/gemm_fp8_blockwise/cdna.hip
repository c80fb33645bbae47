// gemm_fp8_blockwise: a block of k in LDS is as long as a block of scales. Its products are summed
// by the matrix units from zero, and that sum, times the two scales, is added to the result by the
// vector units, which have time for it while the matrix units do the next strips.
#include "ops/gemm_fp8_blockwise/cdna.h"

#include "ops/cdna_gemm.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kScaleBlock = 128;
constexpr int kGroupRows = 128;

/// Of a's scales, each lane needs those of its columns of the products; of b's, the wave needs
/// those of its strips' rows, which are uniform: they come through scalar loads. Both are read a
/// block of k ahead of their use.
template <class Shape>
class Scales {
 public:
  /// m0, n0: the tile's first row and column.
  __device__ __attribute__((always_inline)) Scales(const GemmFp8BlockwiseParams& p, int m0, int n0)
      : p_(p),
        a_scale_(p.a_scale + m0 * p.a_scale_row_stride, 0xffffffffU),
        n_(n0 + Shape::wave_n()) {
#pragma unroll
    for (int i = 0; i < Shape::kStripsM; ++i) {
      const int m = Shape::wave_m() + i * kStripRows + lane_index() % kStripRows;
      const int row = __builtin_elementwise_min(m, p.task.m - m0 - 1);
      a_offset_[i] = static_cast<uint32_t>(row * p.a_scale_row_stride * int64_t{sizeof(float)});
    }
  }

  __device__ __attribute__((always_inline)) void fetch(int block) {
    const auto along =
        static_cast<uint32_t>(block * p_.a_scale_block_stride * int64_t{sizeof(float)});
#pragma unroll
    for (int i = 0; i < Shape::kStripsM; ++i) {
      a_[i] = __builtin_bit_cast(float, a_scale_.load_word(a_offset_[i], along));
    }
#pragma unroll
    for (int j = 0; j < kOfB; ++j) {
      const int n = __builtin_elementwise_min(n_ + j * 2 * kStripRows, p_.task.n - 1);
      using Constant = const __attribute__((address_space(4))) float;
      b_[j] = *(Constant*)(p_.b_scale + n / kScaleBlock * p_.b_scale_row_stride +
                           block * p_.b_scale_block_stride);
    }
  }

  /// Of strip t of n and strip i of m.
  __device__ __attribute__((always_inline)) float of(int t, int i) const {
    return plain_nan(a_[i] * b_[kWhole ? 0 : t / 2]);
  }

 private:
  /// A tile's columns lie in one block of scales, or else each pair of strips of n does.
  static constexpr bool kWhole = kScaleBlock % Shape::kN == 0;
  static constexpr int kOfB = kWhole ? 1 : Shape::kStripsN / 2;
  const GemmFp8BlockwiseParams& p_;
  Buffer a_scale_;
  int n_;
  uint32_t a_offset_[Shape::kStripsM];
  float a_[Shape::kStripsM];
  float b_[kOfB];
};

/// `a_first`, `b_first`: the tile's operands at k = 0.
template <class Shape, class TileA, class TileB>
WEFT_GPU void gemm(const GemmFp8BlockwiseParams& p, const GemmPlace& place, const void* a_first,
                   const void* b_first, LdsBytes* lds) {
  const GemmTask& task = p.task;
  TileA a(a_first, task.a_stride, task.m - place.m0, task.k);
  TileB b(b_first, task.b_stride, task.n - place.n0, task.k);
  const int blocks = task.k / kScaleBlock;
  const int begin = blocks * place.split / task.splits;
  const int end = blocks * (place.split + 1) / task.splits;

  Sums<Shape> sums;
  const StripPairs<Shape, TileA, TileB> pairs;
  Scales<Shape> scales(p, place.m0, place.n0);
  scales.fetch(begin);
  walk_k<Shape>(a, b, lds, begin, end, [&](const LdsBytes* stage, int block) {
    const Scales<Shape> now = scales;
    scales.fetch(__builtin_elementwise_min(block + 1, end - 1));
    const Priority priority;
    f32x4 part[2][Shape::kStripsM];
    const auto add_scaled = [&](int t) {
#pragma unroll
      for (int i = 0; i < Shape::kStripsM; ++i) {
        sums.of[t][i] += part[t % 2][i] * now.of(t, i);
      }
    };
    pairs.visit(
        stage,
        [&](int t, int i, const Strip& b_strip, const Strip& a_strip) {
          part[t % 2][i] = mma<Format::fp8>(b_strip, a_strip, f32x4{});
        },
        [&](int t) {
          if (t > 0) {
            add_scaled(t - 1);
            interleave<Shape::kStripsM * kMmas<Format::fp8>>();
          }
        });
    add_scaled(Shape::kStripsN - 1);
  });

  finish_gemm<bf16_t, TileB::kPairs>(task, place, sums, lds);
}

template <class Shape>
WEFT_GPU void k_major(const GemmFp8BlockwiseParams& p) {
  __shared__ __attribute__((aligned(1024))) char lds[Shape::kLdsBytes];
  const GemmPlace place = gemm_place<Shape>(p.task);
  gemm<Shape, RowMajorTile<Shape::kM, false>, RowMajorTile<Shape::kN, false>>(
      p, place, &at<char>(p.task.a, place.m0 * p.task.a_stride),
      &at<char>(p.task.b, place.n0 * p.task.b_stride), (LdsBytes*)lds);
}

template <class Shape>
WEFT_GPU void mn_major(const GemmFp8BlockwiseParams& p) {
  __shared__ __attribute__((aligned(1024))) char lds[Shape::kLdsBytes];
  const GemmPlace place = gemm_place<Shape>(p.task);
  gemm<Shape, ColumnMajorTile<Shape::kM, false>, ColumnMajorTile<Shape::kN, true>>(
      p, place, &at<char>(p.task.a, place.m0), &at<char>(p.task.b, place.n0), (LdsBytes*)lds);
}

/// k_major() with the b of the tile's group.
template <class Shape>
WEFT_GPU void grouped(const GemmFp8BlockwiseParams& p) {
  static_assert(kGroupRows % Shape::kM == 0, "a tile's rows are of one group");
  using Constant = const __attribute__((address_space(4))) int32_t;
  const int group = *(Constant*)(p.group_of + gemm_place<Shape>(p.task).m0 / kGroupRows);
  if (group < 0) {
    return;
  }
  GemmFp8BlockwiseParams own = p;
  own.task.b = &at<char>(p.task.b, int64_t{group} * p.task.n * p.task.b_stride);
  own.b_scale +=
      int64_t{group} * ((p.task.n + kScaleBlock - 1) / kScaleBlock) * p.b_scale_row_stride;
  k_major<Shape>(own);
}

}  // namespace

// m x n of the tile, and how the four waves share it.
#define KERNELS(tile_m, tile_n, waves_m, waves_n)                                              \
  extern "C" __global__ __launch_bounds__(                                                     \
      256, 1) void gemm_fp8_blockwise_k_major_##tile_m##x##tile_n(GemmFp8BlockwiseParams p) {  \
    k_major<TileShape<tile_m, tile_n, waves_m, waves_n>>(p);                                   \
  }                                                                                            \
  extern "C" __global__ __launch_bounds__(                                                     \
      256, 1) void gemm_fp8_blockwise_mn_major_##tile_m##x##tile_n(GemmFp8BlockwiseParams p) { \
    mn_major<TileShape<tile_m, tile_n, waves_m, waves_n>>(p);                                  \
  }
KERNELS(128, 128, 2, 2)
KERNELS(96, 128, 2, 2)
KERNELS(128, 96, 4, 1)
KERNELS(64, 128, 2, 2)
KERNELS(64, 64, 2, 2)
KERNELS(32, 64, 2, 2)

#define GROUPED_KERNEL(tile_m, tile_n, waves_m, waves_n)                                      \
  extern "C" __global__ __launch_bounds__(                                                    \
      256, 1) void gemm_fp8_blockwise_grouped_##tile_m##x##tile_n(GemmFp8BlockwiseParams p) { \
    grouped<TileShape<tile_m, tile_n, waves_m, waves_n>>(p);                                  \
  }
GROUPED_KERNEL(128, 128, 2, 2)
GROUPED_KERNEL(128, 96, 4, 1)
GROUPED_KERNEL(64, 128, 2, 2)
GROUPED_KERNEL(64, 64, 2, 2)
GROUPED_KERNEL(32, 64, 2, 2)
