// linear and gated_linear for one row on a resident CTA: a matrix-vector product whose weights come
// as a stream of pages, packed in the order and layout in which they are used.
//
// Layout. A unit is 16 columns of out (16 rows of the weight), a group 32 of k; a group of a unit
// is 1024 bytes, the A operands of two mma m16n8k16: in mma j, lane (g, t) = (lane / 4, lane % 4)
// has 16 bytes, k 8t + 4j .. 8t + 4j + 3 of column g, then of column g + 8. A tile is its units one
// after the other, a unit its groups in rising k, k padded with zeros. A unit is cut into pages of
// 16 groups, the last of them shorter, and pages into slices of 8 groups. gated_linear's units
// alternate: gate, up.
//
// Who does what. A slice is one warp's work. With fewer slices in a unit than warps, sets of warps
// take turns at the units; with more, a warp takes every eighth slice. So a warp reads only its own
// part of the row, waits only for that part and for its own pages, and no barrier stands between
// the row's arrival and its use. The sums of the warps meet in shared memory after up to eight
// units, and are added in a fixed order: the bits repeat.
//
// Arithmetic. The B operand is the row, as two bf16 that sum to its elements within 2^-17: column 0
// holds the upper parts, column 1 the lower ones. Which k of a group stands where in the mma does
// not matter as long as A and B agree.
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

/// Units whose sums are gathered at once.
inline constexpr int kBlockUnits = 8;
/// Sums of two blocks: one is gathered while the other is filled. [block][unit][column][part]
inline constexpr int kBlockSums = kBlockUnits * kUnitColumns * Team::kWarps;

/// How the slices of a product's units are dealt to the team's warps.
struct SliceShare {
  int slices;  ///< of a unit
  int sets;    ///< of warps that take turns at units
  int set;     ///< this warp's; >= sets: it has nothing to do
  int first;   ///< this warp's first slice
  int count;   ///< slices of a unit that this warp takes: first, first + 8, ...

  __device__ SliceShare(const Team& team, int slices_) : slices(slices_) {
    if (slices < Team::kWarps) {
      sets = Team::kWarps / slices;
      set = team.warp / slices;
      first = team.warp - set * slices;
      count = 1;
    } else {
      sets = 1;
      set = 0;
      first = team.warp;
      count = (slices - first + Team::kWarps - 1) / Team::kWarps;
    }
  }
  __device__ bool works() const { return set < sets; }
};

/// Four elements of the row, 4 * quad of a slice on, as two bf16 each. A group's upper parts lie
/// before its lower ones: what the lanes of an mma read is one line.
__device__ inline void store_row_quad(char* slice, int quad, float4 x) {
  char* to = slice + quad / 8 * (kGroupK * 4) + quad % 8 * 8;
  const uint32_t h0 = pack_bf16(x.x, x.y);
  const uint32_t h1 = pack_bf16(x.z, x.w);
  *reinterpret_cast<uint2*>(to) = {h0, h1};
  *reinterpret_cast<uint2*>(to + kGroupK * 2) = {
      pack_bf16(x.x - bf16_low(h0), x.y - bf16_high(h0)),
      pack_bf16(x.z - bf16_low(h1), x.w - bf16_high(h1))};
}

/// A warp's sums of one unit: of two interleaved runs of groups and both mma of each.
struct UnitSums {
  float part[4][4] = {};

  /// The sums of columns g and g + 8, in the lanes with t = 0.
  __device__ float2 columns() const {
    const auto sum = [&](int i) { return (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]); };
    return {sum(0) + sum(1), sum(2) + sum(3)};
  }
};

/// sums += the slice of `groups` (1 .. 8) groups of weights at `weights` times `row`, both in
/// shared memory.
__device__ inline void multiply_slice(const Team& team, const char* weights, const char* row,
                                      int groups, UnitSums& sums) {
  const uint32_t w = smem_address(weights) + team.lane * 16;
  const uint32_t x = smem_address(row) + (team.lane & 7) * 16;
  // Lanes of column 0 read upper parts, of column 1 lower ones; the others' columns stay zero.
  const bool has_row = team.lane < 8;
  constexpr int kAtOnce = 4;  // groups
  int done = 0;
#pragma unroll 1
  for (; done + kAtOnce <= groups; done += kAtOnce) {
    uint4 a[kAtOnce][2];
    uint4 b[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      b[i] = load_shared_if(has_row, x + (done + i) * kGroupK * 4);
      a[i][0] = load_shared_bits(w + (done + i) * kGroupBytes);
      a[i][1] = load_shared_bits(w + (done + i) * kGroupBytes + kGroupBytes / 2);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      mma_bf16(sums.part[i % 2 * 2], a[i][0], b[i].x, b[i].y);
      mma_bf16(sums.part[i % 2 * 2 + 1], a[i][1], b[i].z, b[i].w);
    }
  }
#pragma unroll 1
  for (int i = done; i < groups; ++i) {
    const uint4 b = load_shared_if(has_row, x + i * kGroupK * 4);
    const uint4 a0 = load_shared_bits(w + i * kGroupBytes);
    const uint4 a1 = load_shared_bits(w + i * kGroupBytes + kGroupBytes / 2);
    mma_bf16(sums.part[0], a0, b.x, b.y);
    mma_bf16(sums.part[1], a1, b.z, b.w);
  }
}

/// Multiplies the row with `units` units of `groups` groups each, that come through the ring.
///
/// The row comes from `source`. The first slices that this warp needs, up to kAskedAhead, are asked
/// for by source.ask(i, slice), i = 0, 1, ...; source.take(slice, to, next) waits for the oldest
/// that was asked for, stores it at `to` by store_row_quad, zeros beyond the row's end, and asks
/// for slice `next` unless that is -1. Both are called by whole warps; each slice of the row that
/// the warp works on is taken at least once. `kept` slices of the row stay in `row`, the warp's own
/// memory; when the warp has more than that, they are asked for again for each unit (then more than
/// kAskedAhead of them). source.publish() is called by all before each block's barrier.
///
/// finish(first_unit, units, parts, sums) is called by the team, all warps alike, after each block,
/// when `parts` sums for each (unit, column) are there, for gather().  The loader waits for nobody
/// but this, so the pages come.
inline constexpr int kAskedAhead = 4;

template <class Source, class Finish>
__device__ void stream_product(const Team& team, const PageRing& ring, PageCursor& cursor,
                               char* row, int kept, int units, int groups, Source& source,
                               float* sums_memory, int& block_round, Finish finish) {
  const int slices = (groups + kSliceGroups - 1) / kSliceGroups;
  const int pages = (groups + kPageGroups - 1) / kPageGroups;  // of a unit
  const SliceShare share(team, slices);
  const bool keeps = share.count <= kept;
  if (share.works()) {
#pragma unroll
    for (int i = 0; i < kAskedAhead; ++i) {
      if (i < share.count) {
        source.ask(i, share.first + i * Team::kWarps);
      }
    }
  }
  bool taken = false;  // the row is in shared memory
  PageCursor unit_page = cursor;
#pragma unroll 1
  for (int unit = 0; unit < units; ++unit) {
    const int in_block = unit % kBlockUnits;
    float* sums = sums_memory + (block_round & 1) * kBlockSums;
    if (share.works() && unit % share.sets == share.set) {
      UnitSums unit_sums;
      PageCursor page = unit_page;
      int at = 0;  // page of the unit
#pragma unroll 1
      for (int i = 0; i < share.count; ++i) {
        const int slice = share.first + i * Team::kWarps;
        char* to = row + (keeps ? i : i & 1) * kRowSliceBytes;
        if (!taken) {
          // Those after the last are the first again, for the next unit.
          const int next = i + kAskedAhead < share.count ? i + kAskedAhead
                           : !keeps && unit + 1 < units  ? i + kAskedAhead - share.count
                                                         : -1;
          source.take(slice, to, next < 0 ? -1 : share.first + next * Team::kWarps);
          __syncwarp();
        }
        const int wanted = slice / kPageSlices;
        page.advance(wanted - at, ring.slots);
        at = wanted;
        ring.full[page.slot].wait(page.phase);
        multiply_slice(team,
                       ring.pages + page.slot * kPageBytes +
                           (slice % kPageSlices) * (kSliceGroups * kGroupBytes),
                       to, min(kSliceGroups, groups - slice * kSliceGroups), unit_sums);
        __syncwarp();
        if (team.lane == 0) {
          ring.empty[page.slot].arrive();
          if (slice == slices - 1 && slice % kPageSlices != kPageSlices - 1) {
            ring.empty[page.slot].arrive();  // for the slice that is not there
          }
        }
      }
      taken = keeps;
      if (team.lane % 4 == 0) {
        const float2 columns = unit_sums.columns();
        float* to = sums + (in_block * kUnitColumns + team.lane / 4) * Team::kWarps + share.first;
        to[0] = columns.x;
        to[kUnitColumns / 2 * Team::kWarps] = columns.y;
      }
    }
    unit_page.advance(pages, ring.slots);
    if (in_block == kBlockUnits - 1 || unit == units - 1) {
      source.publish();
      team.sync();
      finish(unit - in_block, in_block + 1, min(slices, Team::kWarps), sums);
      ++block_round;
    }
  }
  cursor = unit_page;
}

/// The sum over the parts of one (unit, column) of a block.
__device__ inline float gather(const float* sums, int index, int parts) {
  const float4* from = reinterpret_cast<const float4*>(sums + index * Team::kWarps);
  const float4 p = from[0];
  float sum = p.x + (parts > 1 ? p.y : 0) + ((parts > 2 ? p.z : 0) + (parts > 3 ? p.w : 0));
  if (parts > 4) {
    const float4 q = from[1];
    sum += q.x + (parts > 5 ? q.y : 0) + ((parts > 6 ? q.z : 0) + (parts > 7 ? q.w : 0));
  }
  return sum;
}

}  // namespace weft::hopper
