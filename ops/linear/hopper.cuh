// linear and gated_linear for one row on a resident CTA: a matrix-vector product whose weights come
// as a stream of pages, packed in the order and layout in which they are used.
//
// Layout. A unit is 16 columns of out (16 rows of the weight; gated_linear: 8 gate columns, then
// the 8 up columns beside them), a group 32 of k; a group of a unit is 1024 bytes, the A operands
// of two mma m16n8k16: in mma j, lane (g, t) = (lane / 4, lane % 4) has 16 bytes, k 8t + 4j .. 8t +
// 4j + 3 of column g, then of column g + 8. A tile is its units one after the other, a unit its
// groups in rising k, k padded with zeros. A unit is cut into pages of 16 groups, the last of them
// shorter, and pages into slices of 8 groups.
//
// Folded units. Workers' shares are evener when they are not whole units. The last unit of a
// product may be folded, once or twice (`fold`): it has 16 >> fold columns, and a group of it holds
// 1 << fold groups of k, one in each half or quarter of the lanes: lane (g, t) has columns g % h and
// h + g % h, h = 8 >> fold, of the (g / h)-th. A slice of it is the same range of k in a half or a
// quarter of the bytes, so warps read the same parts of the row as for the other units; the lanes of
// the other groups of k multiply zeros.
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
/// Arrivals that free a page, from the warps that read its slices.
inline constexpr int kPageArrivals = kPageSlices << kMostFold;
/// Sums of two blocks: one is gathered while the other is filled. [block][unit][column][part]
inline constexpr int kBlockSums = kBlockUnits * kUnitColumns * Team::kWarps;

/// What a warp keeps from one product to the next. In shared memory: a register that the compiler
/// has no room for would go to memory.
struct alignas(16) ProductState {
  PageCursor cursor;    ///< the next product's first page
  int block_round = 0;  ///< blocks so far
  int products = 0;     ///< for the caller
};

/// How the slices of a product's units are dealt to the team's warps.
struct SliceShare {
  int slices;  ///< of a unit
  int sets;    ///< of warps that take turns at units
  int set;     ///< this warp's; >= sets: it has nothing to do
  int first;   ///< this warp's first slice
  int count;   ///< slices of a unit that this warp takes: first, first + 8, ...
  int place;   ///< the warp's, among the slices that are kept

  __device__ SliceShare(const Team& team, int slices_) : slices(slices_), place(team.warp) {
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

/// Where the i-th slice of the row that a warp keeps lies: beside the other warps', so that slices
/// that few warps have take no room for all.
__device__ inline int row_place(const SliceShare& share, int i) {
  return (i * Team::kWarps + share.place) * kRowSliceBytes;
}

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

/// The row's operands of some groups, in the lanes of columns 0 (upper parts) and 1 (lower ones);
/// what the other lanes hold goes to columns that nobody reads. To be made once for many loads, and
/// near them: registers that are never written in some lanes count as taken from the first time on
/// that somebody may have, in a loop around all else too.
struct RowGroups {
  static constexpr int kGroups = 4;
  uint4 group[kGroups] = {};

  /// `row`: of the first group, in shared memory.
  __device__ __forceinline__ void load(int lane, uint32_t row) {
    const bool has_row = lane < 8;
    const uint32_t from = row + (lane & 7) * 16;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      load_shared_if(has_row, from + i * kGroupK * 4, group[i]);
    }
  }
};

/// A slice of weights in registers. A page is free again as soon as its slices are here, which for
/// the first slices of a product is before the row has come: registers are part of the ring.
struct WeightSlice {
  uint4 group[kSliceGroups][2];

  /// `from`: of this lane, in shared memory; of a unit folded `fold` times. What is not among the
  /// slice's first `groups` groups becomes zeros.
  __device__ __forceinline__ void load(int lane, uint32_t from, int groups, int fold) {
    if (fold == 0 && groups >= kSliceGroups) {
#pragma unroll
      for (int i = 0; i < kSliceGroups; ++i) {
        group[i][0] = load_shared_bits(from + i * kGroupBytes);
        group[i][1] = load_shared_bits(from + i * kGroupBytes + kGroupBytes / 2);
      }
      return;
    }
    const int in_group = lane >> (5 - fold);
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      group[i][0] = group[i][1] = uint4{};
      const bool here = (i >> fold) < groups && (i & ((1 << fold) - 1)) == in_group;
      load_shared_if(here, from + (i >> fold) * kGroupBytes, group[i][0]);
      load_shared_if(here, from + (i >> fold) * kGroupBytes + kGroupBytes / 2, group[i][1]);
    }
  }

  /// sums += this times a slice of the row in shared memory, which comes through `part`.
  __device__ __forceinline__ void multiply(int lane, uint32_t row, RowGroups& part,
                                           UnitSums& sums) const {
#pragma unroll
    for (int done = 0; done < kSliceGroups; done += RowGroups::kGroups) {
      part.load(lane, row + done * kGroupK * 4);
#pragma unroll
      for (int i = 0; i < RowGroups::kGroups; ++i) {
        mma_bf16(sums.part[i % 2 * 2], group[done + i][0], part.group[i].x, part.group[i].y);
        mma_bf16(sums.part[i % 2 * 2 + 1], group[done + i][1], part.group[i].z, part.group[i].w);
      }
    }
  }
};

/// Multiplies the row with `units` units of `groups` groups each, the last of them folded `fold`
/// times, that come through the ring.
///
/// The row comes from `source`. The first slices that this warp needs, up to kAskedAhead, are asked
/// for by source.ask(i, slice), i = 0, 1, ...; source.take(slice, to, next) waits for the oldest
/// that was asked for, stores it at `to` by store_row_quad, zeros beyond the row's end, and asks
/// for slice `next` unless that is -1. Both are called by whole warps; each slice of the row that
/// the warp works on is taken at least once. `kept` slices of the row stay in `row`, in the warp's
/// part of it; when the warp has more than that, they are asked for again for each unit (then more
/// than kAskedAhead of them). When source.makes_row(), it makes all of the warp's slices at once
/// instead: source.make_row(share, row). source.publish() is called after the last slice of a unit
/// that was taken, before the next barrier, and source.await_page(barrier, phase) waits for a page.
///
/// finish(first_unit, units, parts, sums) is called by the team, all warps alike, after each block,
/// when `parts` sums for each (unit, column) are there, for gather(). The loader waits for nobody
/// but this, so the pages come.
inline constexpr int kAskedAhead = 2;

template <class Source, class Finish>
__device__ __forceinline__ void stream_product(const Team& team, const PageRing& ring,
                                               ProductState* states, char* row, int kept, int units,
                                               int groups, int fold, Source& source,
                                               float* sums_memory, Finish finish) {
  const int slices = (groups + kSliceGroups - 1) / kSliceGroups;
  const int pages = (groups + kPageGroups - 1) / kPageGroups;  // of a unit
  const SliceShare share(team, slices);
  const int lane = made_here(team.lane);
  const uint32_t in_row = smem_address(row);
  const uint32_t weights = smem_address(ring.pages) + lane * 16;
  const auto fold_of = [&](int unit) { return unit + 1 == units ? fold : 0; };
  // Said anew each time: not even its address should take a register through the loop.
  const auto state = [&]() -> ProductState& {
    return states[made_here(static_cast<int>(threadIdx.x)) / 32];
  };
  PageCursor page = state().cursor;
  int round = state().block_round;
  float* my_sums = sums_memory + lane / 4 * Team::kWarps + share.first;
  page.advance(share.set * pages + page_of(share.first, fold_of(share.set)), ring.slots);
  const auto release = [&](int slice, int unit_fold) {
    __syncwarp();
    if (lane == 0) {
      // The unit's last slice stands for those that its page has not.
      const int missing = slice + 1 == slices ? place_in_page(-slices, unit_fold) : 0;
      ring.empty[page.slot].arrive((1 + missing) << (kMostFold - unit_fold));
    }
  };
  const auto leave = [&](int unit, int unit_fold, const UnitSums& unit_sums) {
    float2 columns = unit_sums.columns();
#pragma unroll 1
    for (int distance = 16; distance > 16 >> unit_fold; distance /= 2) {
      columns.x += __shfl_xor_sync(~0u, columns.x, distance);
      columns.y += __shfl_xor_sync(~0u, columns.y, distance);
    }
    const int half = kUnitColumns / 2 >> unit_fold;
    if (lane % 4 == 0 && lane / 4 < half) {
      float* to = my_sums + (round & 1) * kBlockSums + unit * (kUnitColumns * Team::kWarps);
      to[0] = columns.x;
      to[half * Team::kWarps] = columns.y;
    }
  };
  const auto end_block = [&](int block, int block_units) {
    team.sync();
    finish(block, block_units, min(slices, Team::kWarps),
           sums_memory + (round & 1) * kBlockSums);
    ++round;
    __syncwarp();
    if (lane == 0) {
      const int last = page_of(slices - 1, fold_of(block + block_units - 1));
      state().cursor.advance((block_units - 1) * pages + last + 1, ring.slots);
      state().block_round = round;
    }
    __syncwarp();
  };

  const bool keeps = share.count <= kept;
  constexpr int kRoundPages = Team::kWarps / kPageSlices;  // from one slice of a warp to its next
  // To the next unit of this warp, from the last slice of one that is not folded.
  const int next_unit =
      share.sets * pages - (share.count - 1) * kRoundPages - page_of(share.first, 0);
  const bool works = share.set < min(share.sets, units);
  WeightSlice held;
  const auto fetch = [&](int unit, int i, bool wanted) {
    const int slice = share.first + i * Team::kWarps;
    const int unit_fold = fold_of(unit);
    if (wanted) {
      source.await_page(ring.full[page.slot], page.phase);
    }
    held.load(lane,
              weights + page.slot * kPageBytes +
                  place_in_page(share.first, unit_fold) * (kSliceBytes >> unit_fold),
              wanted ? static_cast<int>(folded_groups(groups, unit_fold)) -
                           slice * (kSliceGroups >> unit_fold)
                     : 0,
              unit_fold);
    if (wanted) {
      release(slice, unit_fold);
      page.advance(
          i + 1 < share.count
              ? kRoundPages >> unit_fold
              : next_unit + page_of(share.first, fold_of(unit + share.sets)),
          ring.slots);
    }
  };
  // Fetched by all: registers that are written on some ways only would stay taken outside of this
  // function.
  bool asks = works && !source.makes_row();
#pragma unroll
  for (int i = 0; i < kAskedAhead; ++i) {
    if (i < share.count && asks) {
      source.ask(i, share.first + i * Team::kWarps);
    }
  }
  fetch(share.set, 0, works);
  if (works && source.makes_row()) {
    source.make_row(share, row);
  }
  RowGroups part;
#pragma unroll 1
  for (int block = 0; block < units; block += kBlockUnits) {
    const int block_units = min(kBlockUnits, units - block);
#pragma unroll 1
    for (int unit = share.works() ? share.set : block_units; unit < block_units;
         unit += share.sets) {
      UnitSums unit_sums;
#pragma unroll 1
      for (int i = 0; i < share.count; ++i) {
        const int slice = share.first + i * Team::kWarps;
        const int place = row_place(share, keeps ? i : i & 1);
        if (asks) {
          // Those after the last are the first again, for the next unit.
          const int next = i + kAskedAhead < share.count        ? i + kAskedAhead
                           : !keeps && block + unit + 1 < units ? i + kAskedAhead - share.count
                                                                : -1;
          source.take(slice, row + place, next < 0 ? -1 : share.first + next * Team::kWarps);
          __syncwarp();
        }
        held.multiply(lane, in_row + place, part, unit_sums);
        if (asks && i + 1 == share.count) {
          source.publish();  // while the sums come out
        }
        const bool same_unit = i + 1 < share.count;
        const int then = block + unit + (same_unit ? 0 : share.sets);
        if (then < units) {
          fetch(then, same_unit ? i + 1 : 0, true);
        }
      }
      asks = asks && !keeps;
      leave(unit, fold_of(block + unit), unit_sums);
    }
    end_block(block, block_units);
  }
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
