// mla_layer on AMD: products of each head (arch/cdna/gemm.hip.h). Queries meet the keys' weights as
// these lie, [k][columns]: they are transposed on their way to LDS.
#include "ops/mla_layer/cdna.h"

#include "ops/cdna_gemm.hip.h"
#include "ops/mla_decode/cdna_turn.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kNope = 128;
constexpr int kTurned = 64;
constexpr int kRank = 512;

using Tile = TileShape<kHeadTileM, kHeadTileN, 2, 2>;

/// Brings tiles of kRows rows, 64 of k each, of a bf16 matrix that lies in memory along its rows'
/// direction, [k][rows], both multiples of the tile's. A thread transposes 4 rows of 8 k in
/// registers; a wave reads 256 bytes that are adjacent.
template <int kRows>
class ColumnTile {
 public:
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr bool kPairs = true;

  __device__ __attribute__((always_inline)) ColumnTile(const void* first, int64_t stride)
      : buffer_(first, 0xffffffffU), stride_(static_cast<uint32_t>(stride)) {
    const int row = thread_index() % (kRows / kRowsEach) * kRowsEach;
    const int chunk = thread_index() / (kRows / kRowsEach);
    offset_ = chunk * kDeep * stride_ + row * 2;
    place_ = chunk_offset(row, chunk);
  }

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    uint32_t along = k_block * (kStripBytes / 2) * stride_;
#pragma unroll
    for (int k = 0; k < kDeep; ++k) {
      staged_[k] = buffer_.load_pair(offset_, along);
      along += stride_;
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const uint32_t pick = i % 2 == 0 ? 0x05040100 : 0x07060302;  // low or high halves
      u32x4 row;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        row[j] = __builtin_amdgcn_perm(staged_[2 * j + 1][i / 2], staged_[2 * j][i / 2], pick);
      }
      // Its first row is a multiple of 4, and the key linear.
      using Chunk = __attribute__((address_space(3))) u32x4;
      *reinterpret_cast<Chunk*>(lds + (place_ ^ chunk_offset(i, 0))) = row;
    }
  }

 private:
  static constexpr int kRowsEach = 4;
  static constexpr int kDeep = 8;
  static_assert(kRows / kRowsEach * (kStripBytes / 2 / kDeep) == kTileThreads);
  Buffer buffer_;
  uint32_t stride_;
  uint32_t offset_;
  int place_;
  u32x2 staged_[kDeep];
};

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
  ColumnTile<Tile::kN> b(&at<char>(p.of.b, place.head * p.b_pitch + place.n0 * 2), p.of.b_stride);
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
