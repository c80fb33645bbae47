// linear and gated_linear for one to eight rows, each of a sequence, on a resident CTA: a product
// whose weights come as a stream of pages, packed in the order and layout in which they are used.
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
// 1 << fold groups of k, one in each half or quarter of the lanes: lane (g, t) has columns g % h
// and h + g % h, h = 8 >> fold, of the (g / h)-th. A slice of it is the same range of k in a half
// or a quarter of the bytes, so warps read the same parts of the row as for the other units; the
// lanes of the other groups of k multiply zeros.
//
// Compressed slices (hopper_compress.h). A slice of 16 >> fold columns begins with a header of 128
// >> fold bytes: for each column the exponent of what scales its sums, then the weights that are
// listed. Then its groups, 768 bytes each: 16 bytes a lane, the low parts of its 16 weights, and 8
// bytes a lane, their high parts; the word of registers 2q and 2q + 1 of mma j has the bytes of
// four weights, the j-th word of high parts those of all four registers, by number. A slice is
// whole: beyond k, where the row is zero, weights are anything. Weights become bf16 as they go from
// shared memory to registers, eleven instructions for eight of them.
//
// Who does what. A slice is one warp's work. With fewer slices in a unit than warps, sets of warps
// take turns at the units; with more, a warp takes every eighth slice. So a warp reads only its own
// part of the row, waits only for that part and for its own pages, and no barrier stands between
// the row's arrival and its use. The sums of the warps meet in shared memory after up to eight
// units, and are added in a fixed order: the bits repeat.
//
// Arithmetic. The rows are the columns of the B operand (see hopper_layout.h): a row's upper parts
// in one, its lower ones in the next; with more than four sequences each has one column. Which k of
// a group stands where in the mma does not matter as long as A and B agree. What is a template of
// kBatch is made for at most so many sequences: batch_of().
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "ops/linear/hopper_compress.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {

/// Arrivals that free a page, from the warps that read its slices.
inline constexpr int kPageArrivals = kPageSlices << kMostFold;
/// Sums of a block of units for each sequence; there are two blocks: one is gathered while the
/// other is filled. [block][sequence][unit][column][part]
template <int kBatch>
inline constexpr int kBlockSums = kBatch* block_units(kBatch) * kUnitColumns* Team::kWarps;

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

  /// `most_sets`: a power of 2.
  __device__ SliceShare(const Team& team, int slices_, int most_sets)
      : slices(slices_), place(team.warp) {
    if (slices < Team::kWarps) {
      sets = min(Team::kWarps / slices, most_sets);
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

/// Where the i-th slice of the rows that a warp keeps lies: beside the other warps', so that slices
/// that few warps have take no room for all.
template <int kBatch>
__device__ inline int row_place(const SliceShare& share, int i) {
  return (i * Team::kWarps + share.place) * row_slice_bytes(kBatch);
}

/// A group's k of one column of B, and of all columns that are in use, in shared memory.
inline constexpr int kColumnBytes = kGroupK * 2;
template <int kBatch>
inline constexpr int kRowGroupBytes = row_columns(kBatch) * kColumnBytes;

/// Four elements of a sequence's row, 4 * quad of a slice on. A group's columns lie one after the
/// other: what the lanes of an mma read is one run.
template <int kBatch>
__device__ inline void store_row_quad(char* slice, int sequence, int quad, float4 x) {
  char* to = slice + quad / 8 * kRowGroupBytes<kBatch> +
             sequence * (row_parts(kBatch) * kColumnBytes) + quad % 8 * 8;
  const uint32_t h0 = pack_bf16(x.x, x.y);
  const uint32_t h1 = pack_bf16(x.z, x.w);
  *reinterpret_cast<uint2*>(to) = {h0, h1};
  if constexpr (row_parts(kBatch) == 2) {
    *reinterpret_cast<uint2*>(to + kColumnBytes) = {
        pack_bf16(x.x - bf16_low(h0), x.y - bf16_high(h0)),
        pack_bf16(x.z - bf16_low(h1), x.w - bf16_high(h1))};
  }
}

/// A warp's sums of one unit: of two interleaved runs of groups and both mma of each.
struct UnitSums {
  float part[4][4] = {};

  /// Of columns g and g + 8, for this lane's sequence (with kBatch = 8 for the second one of its
  /// two): see first_sequence().
  template <int kBatch>
  __device__ float2 columns(bool second = false) const {
    const auto sum = [&](int i) { return (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]); };
    if constexpr (row_parts(kBatch) == 2) {
      return {sum(0) + sum(1), sum(2) + sum(3)};
    } else {
      return second ? float2{sum(1), sum(3)} : float2{sum(0), sum(2)};
    }
  }
  /// The first sequence whose sums a lane has. With kBatch = 1 only lanes with t = 0 have any.
  template <int kBatch>
  __device__ static int first_sequence(int lane) {
    return lane % 4 * (2 / row_parts(kBatch));
  }
};

/// The rows' operands of some groups, in the lanes of the columns that are in use; what the other
/// lanes hold goes to columns that nobody reads. To be made once for many loads, and near them:
/// registers that are never written in some lanes count as taken from the first time on that
/// somebody may have, in a loop around all else too.
template <int kBatch>
struct RowGroups {
  static constexpr int kGroups = 4;
  uint4 group[kGroups] = {};

  /// `row`: of the first group, in shared memory.
  __device__ __forceinline__ void load(int lane, uint32_t row) {
    constexpr int kLanes = 4 * row_columns(kBatch);  // that have a column
    const bool has_row = lane < kLanes;
    const uint32_t from = row + (lane & (kLanes - 1)) * 16;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      load_shared_if(has_row, from + i * kRowGroupBytes<kBatch>, group[i]);
    }
  }
  /// The first one alone.
  __device__ __forceinline__ void load_first(int lane, uint32_t row) {
    constexpr int kLanes = 4 * row_columns(kBatch);
    load_shared_if(lane < kLanes, row + (lane & (kLanes - 1)) * 16, group[0]);
  }
};

/// A slice of weights in registers. A page is free again as soon as its slices are here, which for
/// the first slices of a product is before the row has come: registers are part of the ring.
struct WeightSlice {
  static constexpr uint32_t kOnes = 127u << 23 | 127u;

  uint4 group[kSliceGroups][2];
  uint32_t scales;  ///< exponents of what scales this lane's columns: << 23, and as a number
  uint32_t extra;   ///< in a lane each: a weight that is listed, or 0

  /// A whole slice. `from`: of this lane, in shared memory.
  __device__ __forceinline__ void load(uint32_t from) {
    scales = kOnes;
    extra = 0;
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      group[i][0] = load_shared_bits(from + i * kGroupBytes);
      group[i][1] = load_shared_bits(from + i * kGroupBytes + kGroupBytes / 2);
    }
  }
  /// The first `groups` groups of a slice, or all that it has, of a unit folded `fold` times; the
  /// others become zeros, and what other lanes have.
  __device__ __forceinline__ void load_part(int lane, uint32_t from, int groups, int fold) {
    scales = kOnes;
    extra = 0;
    const int of_lane = lane >> (5 - fold);
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      group[i][0] = group[i][1] = uint4{};
      const bool here = i < groups && (i & ((1 << fold) - 1)) == of_lane;
      load_shared_if(here, from + (i >> fold) * kGroupBytes, group[i][0]);
      load_shared_if(here, from + (i >> fold) * kGroupBytes + kGroupBytes / 2, group[i][1]);
    }
  }
  /// A compressed slice of a unit that is folded `fold` times; kFolded: at all. `from`: the slice,
  /// in shared memory.
  template <bool kFolded>
  __device__ __forceinline__ void expand(int lane, uint32_t from, int fold) {
    fold = kFolded ? fold : 0;
    const int half = kUnitColumns / 2 >> fold;
    const uint32_t column = from + (lane / 4 & (half - 1));
    scales = load_shared_byte(column) << 23 | load_shared_byte(column + half);
    extra = 0;
    load_shared_if(lane < kMostListed >> fold, from + (kUnitColumns >> fold) + lane * 4, extra);
    const uint32_t low = from + (kSliceHeaderBytes >> fold) + lane * 16;
    const uint32_t high = from + (kSliceHeaderBytes >> fold) + kLowBytes + lane * 8;
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int done = 0; done < kSliceGroups; done += kAtOnce) {
      uint4 lows[kAtOnce];
      uint2 highs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = ((done + i) >> fold) * kCompressedGroupBytes;
        lows[i] = load_shared_bits(low + at);
        highs[i] = load_shared_pair(high + at);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        uint4(&to)[2] = group[done + i];
        to[0] = weights_of(lows[i].x, lows[i].y, highs[i].x);
        to[1] = weights_of(lows[i].z, lows[i].w, highs[i].y);
        if (kFolded && ((done + i) & ((1 << fold) - 1)) != lane >> (5 - fold)) {
          to[0] = to[1] = uint4{};  // other lanes have this group
        }
      }
    }
  }

  /// sums += this times a slice of the rows in shared memory, which comes through `part`.
  template <int kBatch>
  __device__ __forceinline__ void multiply(int lane, uint32_t row, RowGroups<kBatch>& part,
                                           UnitSums& sums) const {
    constexpr int kAtOnce = RowGroups<kBatch>::kGroups;
#pragma unroll
    for (int done = 0; done < kSliceGroups; done += kAtOnce) {
      part.load(lane, row + done * kRowGroupBytes<kBatch>);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        mma_bf16(sums.part[i % 2 * 2], group[done + i][0], part.group[i].x, part.group[i].y);
        mma_bf16(sums.part[i % 2 * 2 + 1], group[done + i][1], part.group[i].z, part.group[i].w);
      }
    }
    uint32_t pending = __ballot_sync(~0u, extra != 0);
#pragma unroll 1
    while (pending != 0) {
      multiply_listed<kBatch>(lane, row, __shfl_sync(~0u, extra, __ffs(pending) - 1), part, sums);
      pending &= pending - 1;
    }
  }

 private:
  /// Four registers of the operand A, of their low parts and their high ones.
  __device__ __forceinline__ static uint4 weights_of(uint32_t low01, uint32_t low23,
                                                     uint32_t high) {
    const auto one = [&](uint32_t low, uint32_t bytes, int number) {
      return __byte_perm(low, kWindowBits >> 8, bytes) |
             (rotate_left(high, 4 * number) & kHighParts);
    };
    // Two bytes of `low`, each below the window's.
    return {one(low01, 0x4140, 0), one(low01, 0x4342, 1), one(low23, 0x4140, 2),
            one(low23, 0x4342, 3)};
  }
  /// Puts a weight of the list in place of the one that stands there for it.
  template <int kBatch>
  __device__ __forceinline__ static void multiply_listed(int lane, uint32_t row, uint32_t listed,
                                                         RowGroups<kBatch>& part, UnitSums& sums) {
    const int k = listed >> 16 & 0xff;
    const int of_row = listed >> 24 & 0xf;
    const bool mine = lane == of_row % 8 * 4 + k / 8 % 4;
    const int number = of_row / 8 + k % 4 / 2 * 2;
    part.load_first(lane, row + k / kGroupK * kRowGroupBytes<kBatch>);
    const bool second = k / 4 % 2 != 0;
    const uint32_t b0 = second ? part.group[0].z : part.group[0].x;
    const uint32_t b1 = second ? part.group[0].w : part.group[0].y;
    const auto add = [&](uint32_t weight) {
      const uint32_t pair = weight << (k % 2 * 16);
      const auto at = [&](int n) { return mine && number == n ? pair : 0; };
      mma_bf16(sums.part[0], {at(0), at(1), at(2), at(3)}, b0, b1);
    };
    add(listed & 0xffff);
    add(kWindowBits | 0x8000);
  }
};

/// Multiplies the rows with `units` units of `groups` groups each, the last of them folded `fold`
/// times, that come through the ring, compressed or not.
///
/// A row (or several; their slices come together) comes from `source`. The first slices that this
/// warp needs, up to Source::kAskedAhead, are asked for by source.ask(i, slice, to), i = 0, 1, ...;
/// source.take(slice, to, next, next_to) waits for the oldest that was asked for, leaves it at `to`
/// as store_row_quad does, zeros beyond the row's end, and asks for slice `next`, which will be
/// taken to `next_to` and may come there from now on, unless that is -1. Both are called by whole
/// warps; each slice of the row that the warp works on is taken at least once. `kept` slices of the
/// row, at least two, stay in `row`, in the warp's places; when the warp has more than that, they
/// are asked for again for each unit (then more than Source::kAskedAhead of them). When
/// source.makes_row(), it makes all of the warp's slices at once instead: source.make_row(share,
/// row). source.publish() is called by all before each block's barrier, and
/// source.await_page(barrier, phase) waits for a page.
///
/// Source::kRowFirst: a slice of the row is taken before the weights for it are fetched, and has
/// the registers (all slices at once where they are kept); otherwise the weights are held while the
/// row is on its way.
///
/// finish(first_unit, units, parts, sums) is called by the team, all warps alike, after each block,
/// when `parts` sums for each (sequence, unit, column) are there, for gather(). The loader waits
/// for nobody but this, so the pages come.
template <int kBatch, class Source, class Finish>
__device__ __forceinline__ void stream_product(const Team& team, const PageRing& ring,
                                               ProductState* states, char* row, int kept, int units,
                                               int groups, int fold, bool compressed,
                                               Source& source, float* sums_memory, Finish finish) {
  const int slices = (groups + kSliceGroups - 1) / kSliceGroups;
  const int pages = (groups + kPageGroups - 1) / kPageGroups;  // of a unit
  constexpr int kBlockUnits = block_units(kBatch);
  const SliceShare share(team, slices, kBlockUnits);
  const int lane = made_here(team.lane);
  const uint32_t in_row = smem_address(row);
  const uint32_t weights = smem_address(ring.pages);
  const auto fold_of = [&](int unit) { return unit + 1 == units ? fold : 0; };
  // Said anew each time: not even its address should take a register through the loop.
  const auto state = [&]() -> ProductState& {
    return states[made_here(static_cast<int>(threadIdx.x)) / 32];
  };
  PageCursor page = state().cursor;
  page.advance(share.set * pages + page_of(share.first, fold_of(share.set)), ring.slots);
  const auto release = [&](int slice, int unit_fold) {
    __syncwarp();
    if (lane == 0) {
      // The unit's last slice stands for those that its page has not.
      const int missing = slice + 1 == slices ? place_in_page(-slices, unit_fold) : 0;
      ring.empty[page.slot].arrive((1 + missing) << (kMostFold - unit_fold));
    }
  };
  const auto leave = [&](int unit, int unit_fold, const UnitSums& unit_sums, uint32_t scales) {
    const int half = kUnitColumns / 2 >> unit_fold;
    float* to = sums_memory + (state().block_round & 1) * kBlockSums<kBatch> +
                (unit * kUnitColumns + lane / 4) * Team::kWarps + share.first;
    constexpr int kSequenceSums = kBlockUnits * kUnitColumns * Team::kWarps;
#pragma unroll
    for (int i = 0; i < 2 / row_parts(kBatch); ++i) {
      float2 columns = unit_sums.columns<kBatch>(i == 1);
#pragma unroll 1
      for (int distance = 16; distance > 16 >> unit_fold; distance /= 2) {
        columns.x += __shfl_xor_sync(~0u, columns.x, distance);
        columns.y += __shfl_xor_sync(~0u, columns.y, distance);
      }
      if ((kBatch > 1 || lane % 4 == 0) && lane / 4 < half) {
        float* of_sequence =
            kBatch > 1 ? to + (UnitSums::first_sequence<kBatch>(lane) + i) * kSequenceSums : to;
        of_sequence[0] = columns.x * __uint_as_float(scales & 0xffu << 23);
        of_sequence[half * Team::kWarps] = columns.y * __uint_as_float(scales << 23);
      }
    }
  };
  const auto end_block = [&](int block, int block_units) {
    source.publish();
    team.sync();
    finish(block, block_units, min(slices, Team::kWarps),
           sums_memory + (state().block_round & 1) * kBlockSums<kBatch>);
    __syncwarp();
    if (lane == 0) {
      const int last = page_of(slices - 1, fold_of(block + block_units - 1));
      state().cursor.advance((block_units - 1) * pages + last + 1, ring.slots);
      ++state().block_round;
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
    const int place = place_in_page(share.first, unit_fold);
    const uint32_t in_page = weights + page.slot * ring.page_bytes;
    const int left = wanted ? groups - slice * kSliceGroups : 0;
    if (compressed && wanted) {
      const uint32_t from = in_page + place * (kCompressedSliceBytes >> unit_fold);
      if (unit_fold == 0) {
        held.template expand<false>(lane, from, 0);
      } else {
        held.template expand<true>(lane, from, unit_fold);
      }
    } else {
      const uint32_t from = in_page + place * (kPlainSliceBytes >> unit_fold) + lane * 16;
      if (unit_fold == 0 && left >= kSliceGroups) {
        held.load(from);
      } else {
        held.load_part(lane, from, left, unit_fold);
      }
    }
    if (wanted) {
      release(slice, unit_fold);
      page.advance(i + 1 < share.count
                       ? kRoundPages >> unit_fold
                       : next_unit + page_of(share.first, fold_of(unit + share.sets)),
                   ring.slots);
    }
  };
  // Where a slice of the row lies: in its place, or in turn in one of two.
  int turn = 0;
  const auto place = [&](int i) {
    return row_place<kBatch>(share, keeps ? i : Source::kRowFirst ? turn & 1 : i & 1);
  };
  // Takes a slice of the row for unit `unit` to its place; those after the last are the first
  // again, for the next unit.
  const auto take = [&](int i, int unit) {
    const int next = i + Source::kAskedAhead < share.count ? i + Source::kAskedAhead
                     : !keeps && unit + 1 < units          ? i + Source::kAskedAhead - share.count
                                                           : -1;
    char* const to = row + place(i);
    turn ^= 1;
    source.take(share.first + i * Team::kWarps, to,
                next < 0 ? -1 : share.first + next * Team::kWarps, row + place(max(next, 0)));
    turn ^= 1;
    __syncwarp();
  };
  // Fetched by all: registers that are written on some ways only would stay taken outside of this
  // function.
  bool asks = works && !source.makes_row();
#pragma unroll
  for (int i = 0; i < Source::kAskedAhead; ++i) {
    if (i < share.count && asks) {
      source.ask(i, share.first + i * Team::kWarps, row + place(i));
    }
  }
  if constexpr (!Source::kRowFirst) {
    fetch(share.set, 0, works);
  }
  if (works && !asks) {
    source.make_row(share, row);
  }
  if constexpr (Source::kRowFirst) {
#pragma unroll 1
    for (int i = 0; asks && i < (keeps ? share.count : 1); ++i) {
      take(i, 0);
    }
    asks = asks && !keeps;
    fetch(share.set, 0, works);
  }
  RowGroups<kBatch> part;
#pragma unroll 1
  for (int block = 0; block < units; block += kBlockUnits) {
    const int block_units = min(kBlockUnits, units - block);
#pragma unroll 1
    for (int unit = share.works() ? share.set : block_units; unit < block_units;
         unit += share.sets) {
      UnitSums unit_sums;
      uint32_t scales = 0;
#pragma unroll 1
      for (int i = 0; i < share.count; ++i) {
        if (!Source::kRowFirst && asks) {
          take(i, block + unit);
        }
        held.template multiply<kBatch>(lane, in_row + place(i), part, unit_sums);
        scales = held.scales;
        const bool last = i + 1 == share.count;
        const int then = block + unit + (last ? share.sets : 0);
        if (then < units) {
          const int next = last ? 0 : i + 1;
          if (Source::kRowFirst && asks) {
            turn ^= 1;
            take(next, then);
          }
          fetch(then, next, true);
        }
      }
      asks = asks && !keeps;
      leave(unit, fold_of(block + unit), unit_sums, scales);
    }
    end_block(block, block_units);
  }
}

/// The sum over the parts of one (sequence, unit, column) of a block.
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
