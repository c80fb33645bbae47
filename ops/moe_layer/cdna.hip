// moe_layer on AMD. Slots are sorted by expert (ops/moe); then a workgroup has up to 128 rows of
// one expert and some columns of its weights, which lie [in, out] and are turned on their way to
// LDS (arch/cdna/gemm.hip.h otherwise). An expert's rows are dealt evenly to as many workgroups as
// they need, by strips of 16. Every result is rounded to f16.
#include "ops/moe_layer/cdna.h"

#include "arch/cdna/reduce.hip.h"
#include "arch/cdna/turned_tile.hip.h"
#include "ops/cdna_linear.hip.h"
#include "ops/moe/cdna_gathered.hip.h"

using namespace weft::cdna;

namespace {

// --- the router ---

/// Sixteen rows and 32 experts; the four waves take turns along k and add their sums up in LDS.
WEFT_GPU void router_product(const MoeLayerRouterParams& p) {
  constexpr int kStrips = kMoeLayerRouterColumns / kStripRows;
  constexpr int kDepth = 32;  // of k, in a load
  constexpr int kInFlight = 4;
  __shared__ f32x4 sums_of[kTileWaves][kStrips][kWaveLanes];
  const int lane = lane_index();
  const int along = lane % kStripRows;
  const int m0 = workgroup_index() / p.tiles_n * kMoeLayerRouterRows;
  const int n0 = workgroup_index() % p.tiles_n * kMoeLayerRouterColumns;
  const Buffer x(&at<char>(p.x, m0 * p.x_stride), kNowhere);
  const Buffer router(&at<char>(p.router, n0 * p.router_stride), kNowhere);
  const uint32_t row = m0 + along < p.rows ? along * static_cast<uint32_t>(p.x_stride) : kNowhere;
  uint32_t column[kStrips];
#pragma unroll
  for (int t = 0; t < kStrips; ++t) {
    const int n = t * kStripRows + along;
    column[t] = n0 + n < p.experts ? n * static_cast<uint32_t>(p.router_stride) : kNowhere;
  }
  struct Block {
    u32x4 x, router[kStrips];
  } ahead[kInFlight];
  const auto fetch = [&](Block& block, int index) {
    const int k = index * kDepth + lane / kStripRows * 8;
    const bool inside = k < p.k;
    block.x = x.load(inside && row != kNowhere ? row + k * 2 : kNowhere);
#pragma unroll
    for (int t = 0; t < kStrips; ++t) {
      block.router[t] = router.load(inside && column[t] != kNowhere ? column[t] + k * 2 : kNowhere);
    }
  };
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    fetch(ahead[i], wave_index() + i * kTileWaves);
  }
  f32x4 sums[kStrips] = {};
  for (int index = wave_index(); index < ceil_div(p.k, kDepth); index += kInFlight * kTileWaves) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
#pragma unroll
      for (int t = 0; t < kStrips; ++t) {
        sums[t] = mma_f16(ahead[i].router[t], ahead[i].x, sums[t]);
      }
      fetch(ahead[i], index + (kInFlight + i) * kTileWaves);
    }
  }
#pragma unroll
  for (int t = 0; t < kStrips; ++t) {
    sums_of[wave_index()][t][lane] = sums[t];
  }
  barrier();
  const int m = m0 + along;
  if (wave_index() < kStrips && m < p.rows) {
    f32x4 all = sums_of[0][wave_index()][lane];
#pragma unroll
    for (int w = 1; w < kTileWaves; ++w) {
      all += sums_of[w][wave_index()][lane];
    }
    const int first = n0 + wave_index() * kStripRows + lane / kStripRows * 4;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r < p.experts) {
        p.logits[int64_t{m} * p.experts + first + r] =
            static_cast<float>(static_cast<f16_t>(all[r]));
      }
    }
    if (p.ids != nullptr && n0 == 0 && wave_index() == 0 && lane < kStripRows) {
      const int64_t slot = int64_t{m + 1} * p.per_row - 1;
      p.ids[slot] = p.experts;
      p.weights[slot] = 1;
    }
  }
}

// --- products ---

constexpr int kMostStrips = kMoeLayerTileM / kStripRows;
constexpr int kTileN = kMoeLayerTileN(kTarget == Target::gfx950);
/// All rows are each wave's, so that there may be any strips of them.
template <int kStrips>
using Tile = TileShape<kStrips * kStripRows, kTileN, 1, kTileWaves>;

/// A workgroup's part.
struct Work {
  int expert;
  const int32_t* slots;
  int rows;
  int column;  ///< the tile's, of tiles
};

/// The `index`-th; false: there is none.
WEFT_GPU bool find_work(const MoeLayerProductParams& p, int index, Work& work) {
  static_assert(kMoeLayerExperts <= 2 * kWaveLanes, "a lane knows two experts");
  const auto tiles_of = [](int strips) { return ceil_div(strips, kMostStrips); };
  int upto[2];  // tiles of rows, of an expert and those before
  int total = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int expert = i * kWaveLanes + lane_index();
    const Buffer order(p.order, (p.experts + 1) * 4);
    const auto begin = static_cast<int>(order.load_word(expert * 4));
    const auto end = static_cast<int>(order.load_word(expert * 4 + 4));
    const int count = expert < p.experts ? end - begin : 0;
    upto[i] = total + sum_upto_lane(tiles_of(ceil_div(count, kStripRows)));
    total = __builtin_amdgcn_readlane(upto[i], kWaveLanes - 1);
  }
  const int all = total * p.tiles_n;
  if (index >= all) {
    return false;
  }
  const int item = place_of(index, all, 1, 1).tile_m;  // each XCD has a band of them
  const int tile = item / p.tiles_n;  // if experts' columns came after all of their rows
  work.expert = 0;
  int before = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int lower = __builtin_popcountll(__builtin_amdgcn_ballot_w64(upto[i] <= tile));
    work.expert += lower;
    before = lower > 0 ? __builtin_amdgcn_readlane(upto[i], lower - 1) : before;
  }
  const int begin = constant_at(p.order, work.expert);
  const int count = constant_at(p.order, work.expert + 1) - begin;
  const int strips = ceil_div(count, kStripRows);
  const int own = tiles_of(strips);
  const int rest = item - before * p.tiles_n;
  const int first = strips * (rest % own) / own * kStripRows;
  const int last = strips * (rest % own + 1) / own * kStripRows;
  work.slots = p.order + p.experts + 1 + begin + first;
  work.rows = __builtin_elementwise_min(count, last) - first;
  work.column = rest / own;
  return true;
}

/// A tile of weights. Sixteen lanes or more read what is adjacent. Of gated products, of each 128
/// rows in LDS two waves bring gate's columns and two up's: strips of a pair, so that a lane has
/// both sums of a column.
template <bool kGated>
class Weights {
 public:
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr int kColumns = kGated ? kTileN / 2 : kTileN;  ///< of a result

  __device__ __attribute__((always_inline))
  Weights(const MoeLayerProductParams& p, const Work& work)
      : first_(part(p, work, 0)), second_(part(p, work, kParts - 1)) {}
  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* lds) {
    first_.fetch(k_block, lds);
    if constexpr (kParts == 2) {
      second_.fetch(k_block, lds);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
    first_.publish(lds);
    if constexpr (kParts == 2) {
      second_.publish(lds + TurnedTile::kRows * kStripBytes);
    }
  }

 private:
  static constexpr int kParts = kTileN / TurnedTile::kRows;
  static_assert(kParts <= 2);

  WEFT_GPU TurnedTile part(const MoeLayerProductParams& p, const Work& work, int index) {
    constexpr int kOwn = kColumns / kParts;
    constexpr int kLanes = kOwn / TurnedTile::kRowsEach;  // along the columns
    const auto& matrices = kernel_argument<MoeLayerProductParams>().w;
    const int which = kGated ? wave_index() / 2 : 0;
    const int own = thread_index() % kLanes * TurnedTile::kRowsEach;
    const int column = __builtin_elementwise_min(work.column * kColumns + index * kOwn + own,
                                                 p.n - TurnedTile::kRowsEach);
    return {matrices[which][work.expert].data,
            matrices[which][work.expert].stride,
            p.k,
            static_cast<uint32_t>(column * 2),
            kGated ? own * 2 + which * 4 : own,
            thread_index() / kLanes % kRowChunks,
            kGated && own / 16 % 2 == 1};
  }

  TurnedTile first_;
  TurnedTile second_;
};

using Four = Vector<f16_t, 4>;
using Eight = Vector<f16_t, 8>;

WEFT_GPU Four rounded(f32x4 x) { return __builtin_convertvector(x, Four); }

WEFT_GPU Four gated(f32x4 gate, f32x4 up) {
  f32x4 x = __builtin_convertvector(rounded(gate), f32x4);
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    x[r] = x[r] / (1 + exp_of(-x[r]));
  }
  return rounded(x) * rounded(up);
}

template <bool kGated, int kStrips>
WEFT_GPU void product(const MoeLayerProductParams& p, const Work& work, LdsBytes* lds) {
  using Shape = Tile<kStrips>;
  GatheredRows<Shape::kM, false> a(p.a, p.a_stride, p.k * static_cast<int>(sizeof(f16_t)),
                                   p.per_row, work.slots, work.rows);
  Weights<kGated> b(p, work);
  Sums<Shape> sums;
  LinearOf<f16_t, f16_t>::multiply(a, b, p.k, lds, sums);

  const Buffer order(work.slots, work.rows * 4);
  const int quarter = lane_index() / kStripRows;
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    const int m = i * kStripRows + lane_index() % kStripRows;
    const auto slot = static_cast<int>(order.load_word(m * 4));
#pragma unroll
    for (int t = 0; t < Shape::kStripsN; t += 2) {
      const int first = Shape::wave_n() + t * kStripRows;  // of b's rows in LDS
      const int column = work.column * Weights<kGated>::kColumns +
                         (kGated ? first / 2 + quarter * 4 : first + quarter * 8);
      if (m < work.rows && column < p.n) {
        const int64_t to = slot * p.out_stride + column * 2;
        if constexpr (kGated) {
          at<Four>(p.out, to) = gated(sums.of[t][i], sums.of[t + 1][i]);
        } else {
          at<Eight>(p.out, to) = __builtin_shufflevector(
              rounded(sums.of[t][i]), rounded(sums.of[t + 1][i]), 0, 1, 2, 3, 4, 5, 6, 7);
        }
      }
    }
  }
}

template <bool kGated>
WEFT_GPU void product(const MoeLayerProductParams& p) {
  __shared__ __attribute__((aligned(1024))) char shared[Tile<kMostStrips>::kLdsBytes];
  auto* lds = (LdsBytes*)shared;
  Work work;
  if (!find_work(p, workgroup_index(), work)) {
    return;
  }
  const int strips = ceil_div(work.rows, kStripRows);
  // Where an expert's rows are more than a tile has, tiles have half of that at least.
  if (strips <= 2) {
    product<kGated, 2>(p, work, lds);
  } else if (strips <= 4) {
    product<kGated, 4>(p, work, lds);
  } else if (strips == 5) {
    product<kGated, 5>(p, work, lds);
  } else if (strips == 6) {
    product<kGated, 6>(p, work, lds);
  } else if (strips == 7) {
    product<kGated, 7>(p, work, lds);
  } else {
    product<kGated, 8>(p, work, lds);
  }
}

// --- the sum ---

/// A workgroup a row, eight columns a thread at a time; products and sums are rounded each.
WEFT_GPU void sum_slots(const MoeLayerSumParams& p) {
#pragma clang fp contract(off)
  const int64_t first = int64_t{workgroup_index()} * p.per_row;
  for (int c = 8 * thread_index(); c < p.n; c += 8 * kTileThreads) {
    Eight sum = {};
    for (int s = 0; s < p.per_row; ++s) {
      const auto weight = static_cast<f16_t>(constant_at(p.weights, first + s));
      sum = sum + at<Eight>(p.products, ((first + s) * p.n + c) * 2) * weight;
    }
    at<Eight>(p.out, workgroup_index() * p.out_stride + c * 2) = sum;
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 2) void moe_layer_router(MoeLayerRouterParams p) {
  router_product(p);
}
extern "C" __global__ __launch_bounds__(256, 1) void moe_layer_up(MoeLayerProductParams p) {
  product<true>(p);
}
extern "C" __global__ __launch_bounds__(256, 1) void moe_layer_down(MoeLayerProductParams p) {
  product<false>(p);
}
extern "C" __global__ __launch_bounds__(256, 2) void moe_layer_sum(MoeLayerSumParams p) {
  sum_slots(p);
}
