// What the tiled matrix products share: out[m, n] = sum over k of a[m, k] b[n, k], a workgroup of
// four waves for each kM x kN of the result, k in blocks of 128 bytes, two stages in LDS. While a
// block is multiplied the next one is on its way, and one barrier a block is all that waves wait
// for one another. Products are taken transposed (b's rows are the matrix instruction's rows), so
// that a lane gets 8 adjacent n of one m: it needs one scale of a, and writes 16 bytes at once.
#pragma once

#include "arch/cdna/round.hip.h"
#include "arch/cdna/tile.hip.h"

namespace weft::cdna {

/// Which part of the work a workgroup does.
struct Place {
  int tile_m;
  int tile_n;
  int split;
};

/// Workgroups are dealt to the 8 XCDs in turn; here each XCD gets a contiguous band of the work,
/// and walks it in windows of kWindow tiles of m, so that what its L2 holds of a and b is used
/// again.
WEFT_GPU Place place_of(int index, int tiles_m, int tiles_n, int splits) {
  constexpr int kXcds = limits_of(kTarget).xcds;
  constexpr int kWindow = 8;
  const int tiles = tiles_m * tiles_n;
  const int all = tiles * splits;
  const int xcd = index % kXcds;
  const int at = xcd * (all / kXcds) + __builtin_elementwise_min(xcd, all % kXcds) + index / kXcds;
  const int tile = at % tiles;
  const int window = tile / (kWindow * tiles_n);
  const int within = tile % (kWindow * tiles_n);
  const int wide = __builtin_elementwise_min(kWindow, tiles_m - window * kWindow);
  return {.tile_m = window * kWindow + within % wide, .tile_n = within / wide, .split = at / tiles};
}

/// A workgroup's tile and each wave's part of it.
template <int kTileM, int kTileN, int kWavesAlongM, int kWavesAlongN>
struct TileShape {
  static constexpr int kM = kTileM;
  static constexpr int kN = kTileN;
  static constexpr int kWaveM = kM / kWavesAlongM;
  static constexpr int kWaveN = kN / kWavesAlongN;
  static constexpr int kStripsM = kWaveM / kStripRows;
  static constexpr int kStripsN = kWaveN / kStripRows;
  static constexpr int kStageBytes = (kM + kN) * kStripBytes;  ///< of LDS: a's rows, then b's
  static constexpr int kLdsBytes = 2 * kStageBytes;
  static_assert(kWavesAlongM * kWavesAlongN == kTileWaves, "every wave has a part");
  static_assert(kWaveM % kStripRows == 0 && kWaveN % (2 * kStripRows) == 0,
                "waves take whole strips of m, and pairs of them of n");
  static_assert(kLdsBytes <= limits_of(kTarget).lds_bytes, "two stages fit the LDS");

  WEFT_GPU int wave_m() { return wave_index() / kWavesAlongN * kWaveM; }
  WEFT_GPU int wave_n() { return wave_index() % kWavesAlongN * kWaveN; }
};

/// A wave's sums: of strip t of n and strip i of m, lane l has column m = 16 i + l % 16. Its rows
/// of n are 32 (t / 2) + 8 (l / 16) + 4 (t % 2) + r where strips are paired, else 16 t + 4 (l / 16)
/// + r.
template <class Shape>
struct Sums {
  f32x4 of[Shape::kStripsN][Shape::kStripsM] = {};
};

/// Calls step(n strip, m strip, b's strip, a's strip) for all pairs of strips of a stage, and
/// after(n strip) when it has done so for all strips of m. What these two do with a strip of n is
/// scheduled together, with the load of the next one.
template <class Shape, class TileA, class TileB>
class StripPairs {
 public:
  __device__ __attribute__((always_inline)) StripPairs()
      : a_(Shape::wave_m()), b_(Shape::wave_n()) {}

  template <class Step, class After>
  __device__ __attribute__((always_inline)) void visit(const LdsBytes* stage, Step step,
                                                       After after) const {
    Strip a[Shape::kStripsM];
#pragma unroll
    for (int i = 0; i < Shape::kStripsM; ++i) {
      a[i] = a_.load(stage, i);
    }
    const LdsBytes* const of_b = stage + Shape::kM * kStripBytes;
    Strip b = b_.load(of_b, 0);
#pragma unroll
    for (int t = 0; t < Shape::kStripsN; ++t) {
      Strip next = b;
      if (t + 1 < Shape::kStripsN) {
        next = b_.load(of_b, t + 1);
      }
#pragma unroll
      for (int i = 0; i < Shape::kStripsM; ++i) {
        step(t, i, b, a[i]);
      }
      after(t);
      // Else the scheduler puts an addition right behind the product that it waits for.
      __builtin_amdgcn_sched_barrier(0);
      b = next;
    }
  }

 private:
  typename TileA::template Reader<Shape::kStripsM, false> a_;
  typename TileB::template Reader<Shape::kStripsN, true> b_;
};

/// Brings blocks [begin, end) of k through LDS and calls multiply(stage, block) for each.
template <class Shape, class TileA, class TileB, class Multiply>
WEFT_GPU void walk_k(TileA& a, TileB& b, LdsBytes* lds, int begin, int end, Multiply multiply) {
  constexpr int kOfB = Shape::kM * kStripBytes;
  const auto fetch = [&](int block, LdsBytes* stage) {
    a.fetch(block, stage);
    b.fetch(block, stage + kOfB);
  };
  const auto publish = [&](LdsBytes* stage) {
    a.publish(stage);
    b.publish(stage + kOfB);
  };
  // Multiplies the block in one stage while the next one comes to the other.
  const auto step = [&](int stage, int block) {
    LdsBytes* const next = lds + (1 - stage) * Shape::kStageBytes;
    fetch(block + 1, next);
    __builtin_amdgcn_sched_barrier(0);  // the loads start before the products
    multiply(lds + stage * Shape::kStageBytes, block);
    __builtin_amdgcn_sched_barrier(0);
    publish(next);
    barrier();
  };
  // Two blocks a turn, so that stages are constants and no address is computed; where that leaves
  // one over it goes first, from the second stage. The last block apart: the loop's body has no
  // branches, or instructions could not be interleaved.
  int block = begin;
  const bool even = (end - begin) % 2 == 0;
  LdsBytes* const first = lds + (even ? Shape::kStageBytes : 0);
  fetch(begin, first);
  publish(first);
  barrier();
  if (even) {
    step(1, block++);
  }
  for (; block + 1 < end; block += 2) {
    step(0, block);
    step(1, block + 1);
  }
  multiply(lds, block);
  barrier();
}

/// Where k is split among workgroups, each leaves its sums in memory and then comes here; true for
/// the last to come, which can read what all have left. `ticket`: of this tile, zero before and
/// after. `lds`: any 4 bytes, free to use.
WEFT_GPU bool comes_last(uint32_t* ticket, int splits, LdsBytes* lds) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  barrier();
  auto* order = reinterpret_cast<__attribute__((address_space(3))) uint32_t*>(lds);
  if (thread_index() == 0) {
    *order = __scoped_atomic_fetch_add(ticket, 1U, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  }
  barrier();
  const uint32_t before = __builtin_amdgcn_readfirstlane(*order);
  if (before + 1 != static_cast<uint32_t>(splits)) {
    return false;
  }
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  if (thread_index() == 0) {
    __scoped_atomic_store_n(ticket, 0U, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  }
  return true;
}

/// Adds up the sums of all splits in the order of k, so that the bits do not depend on who comes
/// last. Returns whether this workgroup does. `partial`: of this tile, [splits][kM kN] f32.
template <class Shape>
WEFT_GPU bool join_splits(Sums<Shape>& sums, f32x4* partial, uint32_t* ticket, int split,
                          int splits, LdsBytes* lds) {
  constexpr int kEach = Shape::kStripsN * Shape::kStripsM;  // of f32x4, of a thread
  f32x4* mine = partial + int64_t{split} * kEach * kTileThreads + thread_index();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    mine[j * kTileThreads] = sums.of[j / Shape::kStripsM][j % Shape::kStripsM];
  }
  if (!comes_last(ticket, splits, lds)) {
    return false;
  }
  sums = {};
  for (int other = 0; other < splits; ++other) {
    const f32x4* theirs = partial + int64_t{other} * kEach * kTileThreads + thread_index();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      sums.of[j / Shape::kStripsM][j % Shape::kStripsM] += theirs[j * kTileThreads];
    }
  }
  return true;
}

/// Eight 16-bit numbers of a lane, four of each of two strips of n that are not paired: lanes
/// exchange them so that each has eight which are adjacent, from column adjacent_column() on.
WEFT_GPU u32x4 exchange(u32x4 words) {
#if defined(__gfx950__)
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto swapped = __builtin_amdgcn_permlane16_swap(words[i], words[2 + i], false, false);
    words[i] = swapped[0];
    words[2 + i] = swapped[1];
  }
#endif
  return words;
}
WEFT_GPU int adjacent_column() {
  return lane_index() / kStripRows % 2 * 16 + lane_index() / (2 * kStripRows) * 8;
}

/// Writes a tile of the result, rounded to T; an f32 one can be added to what is there. `kPaired`:
/// how the sums lie. `out`: its first row and column, of `rows` and `columns` (a multiple of 8)
/// left in the matrix; `stride` in bytes.
template <bool kPaired, class T, class Shape>
WEFT_GPU void write_tile(const Sums<Shape>& sums, T* out, int64_t stride, int rows, int columns,
                         bool accumulate = false) {
  static_assert(kPaired || sizeof(T) == 2, "lanes exchange 16-bit numbers");
  const Buffer buffer(out, 0xfffffffe);
  const int column = kPaired ? lane_index() / kStripRows * 8 : adjacent_column();
#pragma unroll
  for (int i = 0; i < Shape::kStripsM; ++i) {
    const int m = Shape::wave_m() + i * kStripRows + lane_index() % kStripRows;
#pragma unroll
    for (int pair = 0; pair < Shape::kStripsN / 2; ++pair) {
      const int n = Shape::wave_n() + pair * 2 * kStripRows + column;
      f32x8 x;
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        x[r] = sums.of[2 * pair][i][r];
        x[4 + r] = sums.of[2 * pair + 1][i][r];
      }
      const bool inside = m < rows && n < columns;
      const uint32_t offset =
          inside ? static_cast<uint32_t>(m * stride) + n * static_cast<int>(sizeof(T)) : ~0U;
      if constexpr (sizeof(T) == 2) {
        const auto words = __builtin_bit_cast(u32x4, round_to<T>(x));
        buffer.store(kPaired ? words : exchange(words), offset);
      } else {
        const uint32_t second = inside ? offset + 16 : ~0U;
        if (accumulate) {
          x.lo += __builtin_bit_cast(f32x4, buffer.load(offset));
          x.hi += __builtin_bit_cast(f32x4, buffer.load(second));
        }
        buffer.store(x.lo, offset);
        buffer.store(x.hi, second);
      }
    }
  }
}

}  // namespace weft::cdna
