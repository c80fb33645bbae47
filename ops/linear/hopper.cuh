// linear and gated_linear for one row on a resident CTA: a matrix-vector product whose weights come
// as a stream of pages, packed in the order and layout in which they are used.
//
// Layout. A unit is 16 columns of out (16 rows of the weight), a group 32 of k; a group of a unit
// is 1024 bytes, the A operands of two mma m16n8k16: in mma j, lane (g, t) = (lane / 4, lane % 4)
// has 16 bytes, k 8t + 4j .. 8t + 4j + 3 of column g, then of column g + 8. A tile is its units one
// after the other, a unit its groups in rising k, k padded with zeros; the flat sequence of groups
// is cut into pages of 16. gated_linear's units alternate: gate, up.
//
// Arithmetic. Each warp takes every eighth group. The B operand is the row, as two bf16 that sum to
// the f32 within 2^-17: column 0 holds the upper parts, column 1 the lower ones. Which k of a group
// stands where in the mma does not matter as long as A and B agree. The sums of the warps meet in
// shared memory, in a fixed order: the bits repeat.
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

/// Units whose sums are gathered at once.
inline constexpr int kBlockUnits = 8;
/// Sums of two blocks: one is gathered while the other is filled.
inline constexpr int kSumsBytes = 2 * kBlockUnits * kUnitColumns * Team::kWarps * 4;

/// A row in shared memory, split into two bf16 for each element. Elements from k to the end of the
/// last group are zero.
struct SplitRow {
  char* high;  ///< [capacity] bf16
  char* low;
  char* zeros;  ///< 16 bytes of zeros

  /// Elements 4i .. 4i+3.
  __device__ void store4(int i, float4 x) const {
    const uint32_t h0 = pack_bf16(x.x, x.y);
    const uint32_t h1 = pack_bf16(x.z, x.w);
    reinterpret_cast<uint2*>(high)[i] = {h0, h1};
    reinterpret_cast<uint2*>(low)[i] = {pack_bf16(x.x - bf16_low(h0), x.y - bf16_high(h0)),
                                        pack_bf16(x.z - bf16_low(h1), x.w - bf16_high(h1))};
  }
};

/// Loads a row of k (a multiple of 4) f32 from global memory and splits it.
__device__ inline void load_row(const Team& team, const float* row, int k, const SplitRow& out) {
  const int quads = static_cast<int>(groups_of(k)) * kGroupK / 4;
  constexpr int kBatch = 4;  // loads on their way at once
  for (int base = team.thread; base < quads; base += kBatch * Team::kThreads) {
    float4 x[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * Team::kThreads;
      x[j] = 4 * i < k ? __ldcg(reinterpret_cast<const float4*>(row) + i) : float4{};
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * Team::kThreads;
      if (i < quads) {
        out.store4(i, x[j]);
      }
    }
  }
}

/// The same from a row whose elements carry `tag`.
template <class Late>
__device__ void load_row(const Team& team, const Tagged* row, uint32_t tag, int k, Late& late,
                         const SplitRow& out) {
  const int quads = static_cast<int>(groups_of(k)) * kGroupK / 4;
  constexpr int kBatch = 2;  // quads on their way at once
#pragma unroll 1
  for (int base = team.thread; base < quads; base += kBatch * Team::kThreads) {
    float2 x[2 * kBatch] = {};
    uint32_t pending = 0;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      pending |= 4 * (base + j * Team::kThreads) < k ? 3u << (2 * j) : 0;
    }
    await_pairs(
        x, pending, tag,
        [&](int j) { return row + 4 * (base + j / 2 * Team::kThreads) + j % 2 * 2; }, late);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * Team::kThreads;
      if (i < quads) {
        out.store4(i, {x[2 * j].x, x[2 * j].y, x[2 * j + 1].x, x[2 * j + 1].y});
      }
    }
  }
}

/// Multiplies `row` with `units` units of `groups` groups each, that come through the ring.
/// `finish(block_first_unit, block_units, sums)` is called by the whole team after each block, when
/// sums[(unit % kBlockUnits) * kUnitColumns + column][warp] are there; it must not sync the team.
/// The loader waits for nobody but this, so the pages come.
template <class Finish>
__device__ void stream_product(const Team& team, const PageRing& ring, PageCursor& cursor,
                               const SplitRow& row, int units, int groups, float* sums_memory,
                               int& block_round, Finish finish) {
  constexpr int kEach = kPageGroups / Team::kWarps;  // groups of a page that a warp takes
  float sums_of[4][4] = {};                          // [mma of a page, page parity]
  int unit = 0;
  int group = team.warp;  // of the unit, the next that this warp takes
  int in_page = 0;        // this warp's groups of the page that it has taken
  const int total = units * groups;
  // Lanes of column 0 read upper parts, of column 1 lower ones; the other columns are zero.
  const bool has_row = team.lane < 8;
  const char* row_base =
      has_row ? (team.lane < 4 ? row.high : row.low) + team.lane % 4 * 16 : row.zeros;
  const int row_stride = has_row ? kGroupK * 2 : 0;
  const auto elements = [&](int at) {
    return *reinterpret_cast<const uint4*>(row_base + at * row_stride);
  };
  const auto weights = [&](int slot, int i) {
    return reinterpret_cast<const uint4*>(ring.pages + slot * kPageBytes) +
           (team.warp + i * Team::kWarps) * (kGroupBytes / 16) + team.lane;
  };
  const auto multiply = [&](int parity, const uint4& first, const uint4& second, const uint4& x) {
    mma_bf16(sums_of[2 * parity], first, x.x, x.y);
    mma_bf16(sums_of[2 * parity + 1], second, x.z, x.w);
  };
  const auto release = [&] {
    if (team.lane == 0) {
      ring.empty[cursor.slot].arrive();
    }
    cursor.advance(ring.slots);
  };

  for (int begin = 0;;) {
    const int left = total - begin;  // groups, of this page and the later ones
    // Units whose last group was taken; after the pages, those whose last groups were others'.
    while (unit < units && (group >= groups || left <= 0)) {
      const int in_block = unit % kBlockUnits;
      float* sums = sums_memory + (block_round & 1) * (kSumsBytes / 8);
      if (team.lane % 4 == 0) {
        float* to = sums + (in_block * kUnitColumns + team.lane / 4) * Team::kWarps + team.warp;
        to[0] = ((sums_of[0][0] + sums_of[1][0]) + (sums_of[2][0] + sums_of[3][0])) +
                ((sums_of[0][1] + sums_of[1][1]) + (sums_of[2][1] + sums_of[3][1]));
        to[kUnitColumns / 2 * Team::kWarps] =
            ((sums_of[0][2] + sums_of[1][2]) + (sums_of[2][2] + sums_of[3][2])) +
            ((sums_of[0][3] + sums_of[1][3]) + (sums_of[2][3] + sums_of[3][3]));
      }
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        sums_of[j / 4][j % 4] = 0;
      }
      if (in_block == kBlockUnits - 1 || unit == units - 1) {
        team.sync();
        finish(unit - in_block, in_block + 1, sums);
        ++block_round;
      }
      ++unit;
      group -= groups;
    }
    if (left <= 0) {
      return;
    }
    constexpr int kAtOnce = 2;  // pages
    if (in_page == 0 && left >= kAtOnce * kPageGroups &&
        group + (kAtOnce * kEach - 1) * Team::kWarps < groups) {
      // Two pages of one unit: everything is asked for before it is used.
      uint4 w[kAtOnce][kEach][2];
      uint4 x[kAtOnce][kEach];
      PageCursor here = cursor;
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        ring.full[here.slot].wait(here.phase);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          w[p][i][0] = weights(here.slot, i)[0];
          w[p][i][1] = weights(here.slot, i)[32];
          x[p][i] = elements(group + (p * kEach + i) * Team::kWarps);
        }
        here.advance(ring.slots);
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int p = 0; p < kAtOnce; ++p) {
          multiply(p, w[p][i][0], w[p][i][1], x[p][i]);
        }
      }
      __syncwarp();
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p) {
        release();
      }
      group += kAtOnce * kEach * Team::kWarps;
      begin += kAtOnce * kPageGroups;
      continue;
    }
    // One group: of a page that several units share, of a unit's odd page, of the last.
    if (in_page == 0) {
      ring.full[cursor.slot].wait(cursor.phase);
    }
    if (team.warp + in_page * Team::kWarps < left) {
      const auto* w = weights(cursor.slot, in_page);
      multiply(0, w[0], w[32], elements(group));
      group += Team::kWarps;
    }
    if (++in_page == kEach || team.warp + in_page * Team::kWarps >= left) {
      __syncwarp();
      release();
      in_page = 0;
      begin += kPageGroups;
    }
  }
}

/// The sum over the warps of one (unit, column) of a block.
__device__ inline float gather(const float* sums, int index) {
  const float4* parts = reinterpret_cast<const float4*>(sums + index * Team::kWarps);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < Team::kWarps / 4; ++i) {
    const float4 p = parts[i];
    sum += (p.x + p.y) + (p.z + p.w);
  }
  return sum;
}

}  // namespace weft::hopper
