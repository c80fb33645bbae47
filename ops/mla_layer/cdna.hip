// mla_layer on AMD: products of each head (arch/cdna/gemm.hip.h). Queries meet the keys' weights as
// these lie, [k][columns]: they are turned on their way to LDS.
#include "ops/mla_layer/cdna.h"

#include "arch/cdna/turned_tile.hip.h"
#include "ops/cdna_gemm.hip.h"
#include "ops/mla_decode/cdna_turn.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kNope = 128;
constexpr int kTurned = 64;
constexpr int kRank = 512;

using Tile = TileShape<kHeadTileM, kHeadTileN, 2, 2>;

template <class TileA, class TileB>
WEFT_GPU void multiply(const GemmTask& task, TileA& a, TileB& b, int blocks, int m0, int n0,
                       void* out, LdsBytes* lds) {
  Sums<Tile> sums;
  const StripPairs<Tile, TileA, TileB> pairs;
  walk_k<Tile>(a, b, lds, 0, blocks, [&](const LdsBytes* stage, int) {
    const Priority priority;
    pairs.visit(
        stage,
        [&](int t, int i, const Strip& b_strip, const Strip& a_strip) {
          sums.of[t][i] = mma<Format::bf16>(b_strip, a_strip, sums.of[t][i]);
        },
        [](int) {});
  });
  write_tile<true>(sums, &at<bf16_t>(out, m0 * task.out_stride + n0 * 2), task.out_stride,
                   task.m - m0, task.n - n0);
}

/// A workgroup's tile of a head's product.
struct HeadPlace {
  int head;
  int m0;
  int n0;
  __device__ __attribute__((always_inline)) explicit HeadPlace(const GemmTask& task) {
    const int tiles = task.tiles_m * task.tiles_n;
    head = workgroup_index() / tiles;
    m0 = workgroup_index() % tiles / task.tiles_n * Tile::kM;
    n0 = workgroup_index() % tiles % task.tiles_n * Tile::kN;
  }
};

/// The part of a head's queries that RoPE turns, of the tile's rows.
WEFT_GPU void turn_queries(const HeadsParams& p, const HeadPlace& place, const char* q, char* out) {
  constexpr int kPieces = kTurned / 2 / 8;
  constexpr int kHalf = kTurned / 2 * 2;  // bytes
  const int row = place.m0 + thread_index() / kPieces;
  const int piece = thread_index() % kPieces * 16;
  if (row < p.of.m) {
    const char* from = q + row * p.of.a_stride + kNope * 2 + piece;
    char* to = out + row * p.of.out_stride + kRank * 2 + piece;
    u32x4 a = at<u32x4>(from, 0);
    u32x4 b = at<u32x4>(from, kHalf);
    turn_halves(a, b, at<u32x4>(p.angles, piece), at<u32x4>(p.angles, piece + kHalf));
    at<u32x4>(to, 0) = a;
    at<u32x4>(to, kHalf) = b;
    if (place.head == 0 && piece == 0) {
      p.lengths[row] = p.length;
    }
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 1) void mla_layer_queries(HeadsParams p) {
  __shared__ __attribute__((aligned(1024))) char lds[Tile::kLdsBytes];
  static_assert(Tile::kM * (kTurned / 2 / 8) == kTileThreads);
  const HeadPlace place(p.of);
  const char* const q = &at<char>(p.of.a, place.head * p.a_pitch);
  char* const out = &at<char>(p.of.out, place.head * p.out_pitch);
  RowMajorTile<Tile::kM, true> a(q + place.m0 * p.of.a_stride, p.of.a_stride, p.of.m - place.m0,
                                 kNope * 2);
  // A wave reads 256 bytes that are adjacent.
  constexpr int kThreadsAlong = TurnedTile::kRows / TurnedTile::kRowsEach;
  static_assert(Tile::kN == TurnedTile::kRows);
  const int row = thread_index() % kThreadsAlong * TurnedTile::kRowsEach;
  TurnedTile b(&at<char>(p.of.b, place.head * p.b_pitch), p.of.b_stride, kNope,
               (place.n0 + row) * 2, row, thread_index() / kThreadsAlong, false);
  if (place.n0 == 0) {
    turn_queries(p, place, q, out);
  }
  multiply(p.of, a, b, kNope * 2 / kStripBytes, place.m0, place.n0, out, (LdsBytes*)lds);
}

extern "C" __global__ __launch_bounds__(256, 1) void mla_layer_values(HeadsParams p) {
  __shared__ __attribute__((aligned(1024))) char lds[Tile::kLdsBytes];
  const HeadPlace place(p.of);
  RowMajorTile<Tile::kM, true> a(
      &at<char>(p.of.a, place.head * p.a_pitch + place.m0 * p.of.a_stride), p.of.a_stride,
      p.of.m - place.m0, kRank * 2);
  RowMajorTile<Tile::kN, true> b(&at<char>(p.of.b, place.head * p.b_pitch), p.of.b_stride, p.of.n,
                                 kRank * 2);
  multiply(p.of, a, b, kRank * 2 / kStripBytes, place.m0, 0,
           &at<char>(p.of.out, place.head * p.out_pitch), (LdsBytes*)lds);
}
