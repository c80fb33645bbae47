// linear and gated_linear for one to eight rows, each of a sequence, on a resident CTA: a product
// whose weights come as a stream of pages, packed in the order and layout in which they are used.
//
// Layout. A unit is 16 columns of out (16 rows of the weight; gated_linear: 8 gate columns, then
// the 8 up columns beside them), a group 32 of k; a group of a unit is 1024 bytes, the A operands
// of two mma m16n8k16: in mma j, lane (g, t) = (lane / 4, lane % 4) has 16 bytes, k 8t + 4j .. 8t +
// 4j + 3 of column g, then of column g + 8. A slice is 8 groups, zeros where k has ended; a page
// has some slices. So weights lie that are plain; the other forms (forms/) have a header before a
// slice's groups, and groups of fewer bytes.
//
// Folded units. Workers' shares are evener when they are not whole units. The last unit of a
// product may be folded, once or twice (`fold`): it has 16 >> fold columns, and a group of it holds
// 1 << fold groups of k, one in each half or quarter of the lanes: lane (g, t) has columns g % h
// and h + g % h, h = 8 >> fold, of the (g / h)-th. So it has half or a quarter of the slices. The
// row's groups stand side by side in B, in columns that are idle otherwise, and a sum is right in
// the lanes where both mean the same group. Only with one sequence: several have no idle columns.
//
// Who does what. The slices of all units, one unit after the other, are dealt to the warps in runs
// (SliceRuns), whatever k is: no warp has two slices more than another. A warp waits only for its
// own pages. It leaves its sums of a unit in shared memory, those of the few warps that share a
// unit side by side, and they are added in a fixed order: the bits repeat. As any warp may need any
// part of the row, the team makes it whole, and a barrier stands between the row and its use.
//
// Arithmetic. The rows are the columns of the B operand (see hopper_layout.h): a row's upper parts
// in one, its lower ones in the next; with more than four sequences each has one column. Which k of
// a group stands where in the mma does not matter as long as A and B agree. What is a template of
// kBatch is made for at most so many sequences: batch_of().
#pragma once

#include "arch/hopper/page_ring.cuh"
#include "ops/linear/forms/fp8/hopper.cuh"
#include "ops/linear/forms/mxfp4/hopper.cuh"
#include "ops/linear/forms/packed/hopper.cuh"
#include "ops/linear/forms/plain/hopper.cuh"
#include "ops/linear/hopper_layout.h"
#include "ops/linear/hopper_operands.cuh"

namespace weft::hopper {

static_assert(Team::kWarps == kTeamWarps);

/// Sums of a block: the warps that share a unit have places side by side, see sums_place().
template <int kBatch>
inline constexpr int kBlockSums = (kBlockUnits + Team::kWarps - 1) * kBatch* kUnitColumns;

/// Where a warp leaves its sums of a block's unit, of a sequence, by column. Runs follow one
/// another, so no two pairs of unit and warp with the same sum both have sums.
template <int kBatch>
__device__ inline int sums_place(int unit, int warp, int sequence) {
  return ((unit + warp) * kBatch + sequence) * kUnitColumns;
}

/// What a warp keeps from one product to the next. In shared memory: a register that the compiler
/// has no room for would go to memory.
struct alignas(16) ProductState {
  PageCursor cursor;  ///< the next product's first page
};

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

/// A slice of weights in registers. A page is free again as soon as its slices are here, which for
/// the first slices of a product is before the row has come: registers are part of the ring. Each
/// form has a reader of its own.
struct WeightSlice : WeightRegisters {
  /// `from`: in shared memory; of plain weights, of this lane.
  __device__ __forceinline__ void load(uint32_t from) { read_plain(*this, from); }
  __device__ __forceinline__ void expand(int lane, uint32_t from) {
    read_packed(*this, lane, from);
  }
  __device__ __forceinline__ void widen(int lane, uint32_t from) { read_fp8(*this, lane, from); }
  __device__ __forceinline__ void widen_mx(int lane, uint32_t from) { read_mx(*this, lane, from); }

  /// sums += this, which is of codes in e4m3fn, times a slice of the rows.
  template <int kBatch>
  __device__ __forceinline__ void multiply_codes(int lane, const RowSlice<kBatch>& row,
                                                 RowGroups<kBatch>& part, UnitSums& sums) const {
    multiply_fp8(*this, lane, row, part, sums);
  }
  /// sums += this, which is of codes in MXFP4, times a slice of the row; see multiply_mx().
  template <int kBatch>
  __device__ __forceinline__ void multiply_mx_codes(const RowSlice<kBatch>& row, uint32_t units,
                                                    RowGroups<kBatch>& part, UnitSums& sums) const {
    multiply_mx(*this, row, units, part, sums);
  }
  /// sums += this times a slice of the rows in shared memory, which comes through `part`.
  template <int kBatch>
  __device__ __forceinline__ void multiply(int lane, const RowSlice<kBatch>& row,
                                           RowGroups<kBatch>& part, UnitSums& sums) const {
    multiply_groups(*this, row, part, sums);
    multiply_all_listed(*this, lane, row, part, sums);
  }
};

/// Multiplies the rows with `units` units over k, the last of them folded `fold` times, that come
/// through the ring. kFp8, kMx: their form may be that; kernels of their own, because others would
/// pay for it with registers.
///
/// A row (or several together) comes from `source`. source.ask(row, runs, slices) asks for what of
/// it this warp makes; source.make(row) waits for that and leaves it in `row` as store_row_quad()
/// does, zeros beyond k; then a barrier, and the row is there; source.publish() comes right after
/// it. source.made(): it was there before, as the weights' form takes it. Source::kRowFirst: the
/// row is made before the first weights are fetched, and has the registers; otherwise they are held
/// while it is on its way. `runs` are those of the first block, `slices` those of a unit that is
/// not folded. Where the row is too large for that (source.streams()), it is not made: the slices
/// that a warp needs come in turn to one of two places of its own, source.take(i, next) bringing
/// the slice for the i-th of a run and asking for slice `next` for the one after it, -1: there is
/// none; source.begin_block(first_unit, runs, slices) asks for the first of a later block's.
/// source.await_page(barrier, phase) waits for a page. Where units have rows of their own, which
/// lie one after the other, source.head_slices(unit, slices) says how many slices are before a
/// unit's.
///
/// finish(first_unit, units, runs, slices) is called by the team, all warps alike, after each
/// block, when the sums for gather() are there; `slices`: of a unit that is not folded. The loader
/// waits for nobody but this, so the pages come.
/// Source::kOfExperts: slices of a unit may be of several experts, each with scales of its own.
/// `whole`, where kWhole: see block_runs().
template <int kBatch, bool kFp8, bool kMx, bool kWhole, class Source, class Finish>
__device__ __forceinline__ void stream_product(const Team& team, const PageRing& ring,
                                               ProductState* states, char* row, int k, int units,
                                               int fold, StreamForm form, bool whole,
                                               Source& source, float* sums_memory, Finish finish) {
  const bool codes = kFp8 && form == StreamForm::fp8;
  const bool mx = kMx && form == StreamForm::mx;
  const bool compressed = kFp8 ? form == StreamForm::compressed : form != StreamForm::plain;
  const int lane = made_here(team.lane);
  const int warp = made_here(team.warp);
  constexpr int kReaders = page_readers(kFp8);
  static_assert(kPageSlices == 2 && kFp8PageSlices == 4 && kMxPageSlices == 8);
  const int page_shift = mx ? 3 : codes ? 2 : 1;  // slices of a page, as a power of 2
  const int slices = slices_of(k);
  const uint32_t in_row = smem_address(row);
  const uint32_t weights = smem_address(ring.pages);
  // Of the lane's first sequence; rows that stream have the same for all slices.
  const auto mx_units = [&] {
    return smem_address(mx_row_units<kBatch>(
               row, source.streams() ? kTeamWarps * kStreamedSlices : slices)) +
           (kBatch == 1 ? 0 : UnitSums::first_sequence<kBatch>(lane) * 4);
  };
  const auto fold_of = [&](int unit) { return kBatch == 1 && unit + 1 == units ? fold : 0; };
  // Said anew each time: not even its address should take a register through the loop.
  const auto state = [&]() -> ProductState& { return states[made_here(threadIdx.x) / 32]; };
  PageCursor page;
  uint32_t last_arrivals;  // of a run's tail: those for slices that its pages lack, too
  int tail = 1;            // slices
  int tail_jump = 0;       // pages
  WeightSlice held;
  // Fetched by all: registers that are written on some ways only would stay taken outside of this
  // function. `last`: of the warp's run, or of its tail.
  const auto fetch = [&](bool wanted, bool last) {
    if (wanted) {
      source.await_page(ring.full[page.slot], page.phase);
    }
    const uint32_t in_page = weights + page.slot * ring.page_bytes;
    if (compressed) {
      held.expand(lane, in_page + (warp & (kPageSlices - 1)) * kCompressedSliceBytes);
    } else if (codes) {
      held.widen(lane, in_page + (warp & (kFp8PageSlices - 1)) * kFp8SliceBytes);
    } else if (mx) {
      held.widen_mx(lane, in_page + (warp & (kMxPageSlices - 1)) * kMxSliceBytes);
    } else {
      held.load(in_page + (warp & (kPageSlices - 1)) * kPlainSliceBytes + lane * 16);
    }
    if (wanted) {
      __syncwarp();
      const uint32_t arrivals = last ? last_arrivals : kReaders >> page_shift;
      if (lane == 0) {
        ring.empty[page.slot].arrive(arrivals);
      }
      page.jump(kWhole && last ? tail_jump : kTeamWarps >> page_shift, ring.slots);
    }
  };
  float2 others{};  // of the unit's slices so far whose columns have other scales
  const auto leave = [&](int of_unit, int unit_fold, const UnitSums& sums, uint32_t scales) {
    const int half = kUnitColumns / 2 >> unit_fold;
#pragma unroll
    for (int i = 0; i < 2 / row_parts(kBatch); ++i) {
      float2 columns = mx ? sums.mx_columns<kBatch>(i == 1) : sums.columns<kBatch>(i == 1);
      columns.x *= __uint_as_float(scales & 0xffu << 23);
      columns.y *= __uint_as_float(scales << 23);
      if constexpr (Source::kOfExperts) {
        columns = {columns.x + others.x, columns.y + others.y};
        others = {};
      }
      if (kBatch == 1 && unit_fold != 0) {
        // Where the weights' group of k and the row's are the same.
        const bool same = lane % 4 == lane / 4 >> (3 - unit_fold);
        columns = same ? columns : float2{};
#pragma unroll
        for (const int distance : {1, 2, 8, 16}) {
          if (distance < 4 || distance > 16 >> unit_fold) {
            columns.x += __shfl_xor_sync(~0u, columns.x, distance);
            columns.y += __shfl_xor_sync(~0u, columns.y, distance);
          }
        }
      }
      if ((kBatch > 1 || lane % 4 == 0) && lane / 4 < half) {
        const int sequence = kBatch == 1 ? 0 : UnitSums::first_sequence<kBatch>(lane) + i;
        float* to = sums_memory + sums_place<kBatch>(of_unit, warp, sequence) + lane / 4;
        to[0] = columns.x;
        to[half] = columns.y;
      }
    }
  };
  // Of a block: how its slices are dealt, and where this warp stands in its run.
  SliceRuns runs(0);
  int left;
  int unit;
  int unit_fold;
  int unit_left;  // slices of the unit
  RowSlice<kBatch> row_slice(lane, in_row, 0, 0);
  const auto begin_unit = [&](int block, int slice) {
    unit_fold = fold_of(block + unit);
    unit_left = unit_slices(k, unit_fold) - slice;
    if constexpr (requires { source.head_slices(0, 0); }) {
      row_slice = {lane, in_row, source.head_slices(block + unit, slices) + slice, unit_fold};
    } else {
      row_slice = {lane, in_row, slice, unit_fold};
    }
  };
  const auto begin = [&](int block) {
    runs = block_runs(k, units, fold, block, kWhole && whole);
    left = runs.count(warp);
    if constexpr (kWhole) {
      tail = runs.tail(warp);
      tail_jump = runs.tail_pages(page_shift);
    }
    unit = small_quotient(runs.first(warp), slices);
    const int of_unit = runs.first(warp) - unit * slices;  // the first slice
    begin_unit(block, of_unit);
    const int beyond = warp == runs.more - 1 ? -runs.more & ((1 << page_shift) - 1) : 0;
    last_arrivals = static_cast<uint32_t>((1 + beyond) * (kReaders >> page_shift));
    page = state().cursor;
    page.jump(warp >> page_shift, ring.slots);
  };
  const auto last = [&] { return kWhole ? left <= tail : left == 1; };
  const auto fetch_first = [&] { fetch(left > 0, last()); };

  begin(0);
  source.ask(row, runs, slices);
  if constexpr (!Source::kRowFirst) {
    fetch_first();
  }
  // Now, while the row is on its way: the compiler would do it when it is there.
  left = made_here(left);
  unit_left = made_here(unit_left);
  row_slice.from = made_here(row_slice.from);
  row_slice.stride = made_here(row_slice.stride);
  source.make(row);
  if (mx && !source.made()) {
    if (source.streams()) {
      source.state_unit(mx_row_units<kBatch>(row, kTeamWarps * kStreamedSlices));
    } else {
      team.sync();
      turn_rows_to_f16<kBatch>(team, row, slices, source.sequences());
    }
  }
  team.sync();
  source.publish();
  if constexpr (Source::kRowFirst) {
    fetch_first();
  }
  RowGroups<kBatch> part;
  const auto multiply = [&](const RowSlice<kBatch>& slice, UnitSums& sums) {
    if (codes) {
      held.template multiply_codes<kBatch>(lane, slice, part, sums);
    } else if (mx) {
      const uint32_t of_slice =
          source.streams() ? 0 : (slice.from - in_row) / row_slice_bytes(kBatch) * (kBatch * 4);
      held.multiply_mx_codes(slice, mx_units() + of_slice, part, sums);
    } else {
      held.template multiply<kBatch>(lane, slice, part, sums);
    }
  };
#pragma unroll 1
  for (int block = 0; block < units; block += kBlockUnits) {
    if (block > 0) {
      begin(block);
      team.sync();             // the last block's sums have been gathered
      if constexpr (kWhole) {  // others that stream have one block
        if (source.streams()) {
          source.begin_block(block, runs, slices);
        }
      }
      fetch_first();
    }
    UnitSums sums;
#pragma unroll 1
    for (int i = 0; left > 0; ++i) {
      const bool ends = --unit_left == 0;
      --left;
      if (source.streams()) {
        source.take(i, left == 0 ? -1 : ends ? 0 : slices - unit_left);
        multiply({lane, source.place(i), 0, 0}, sums);
      } else {
        multiply(row_slice, sums);
        row_slice.advance();
      }
      const uint32_t scales = codes ? WeightSlice::kOnes : held.scales;
      if (left > 0) {
        fetch(true, last());
      }
      if constexpr (Source::kOfExperts) {
        if (compressed && !ends && __any_sync(~0u, held.scales != scales)) {
          const float2 columns = sums.template columns<kBatch>();
          others.x += columns.x * __uint_as_float(scales & 0xffu << 23);
          others.y += columns.y * __uint_as_float(scales << 23);
          sums = {};
        }
      }
      if (ends || left == 0) {
        leave(unit, unit_fold, sums, scales);
        if (left > 0) {
          sums = {};
          ++unit;
          begin_unit(block, 0);
        }
      }
    }
    team.sync();
    finish(block, min(kBlockUnits, units - block), runs, slices);
    __syncwarp();
    if (lane == 0) {
      state().cursor.advance(
          kWhole ? runs.pages(page_shift) : (runs.slices() + (1 << page_shift) - 1) >> page_shift,
          ring.slots);
    }
    __syncwarp();
  }
}

/// The warps that share a unit of a block.
struct SumParts {
  int first;
  int count;
};
/// Of the unit that has slices begin .. end - 1.
__device__ inline SumParts sum_parts(const SliceRuns& runs, int begin, int end) {
  SumParts parts{0, 0};
#pragma unroll
  for (int w = 0; w < Team::kWarps; ++w) {
    parts.first += runs.first(w + 1) <= begin ? 1 : 0;
    parts.count += runs.first(w) < end ? 1 : 0;
  }
  parts.count -= parts.first;
  return parts;
}

/// `slices`: of a unit that is not folded; `units`: of the block.
__device__ inline SumParts sum_parts(const SliceRuns& runs, int slices, int unit, int units) {
  const int begin = unit * slices;
  return sum_parts(runs, begin, unit + 1 < units ? begin + slices : runs.slices());
}

/// The sum of a unit's column, of a sequence.
template <int kBatch>
__device__ inline float gather(const float* sums, const SumParts& parts, int unit, int sequence,
                               int column) {
  const float* from = sums + sums_place<kBatch>(unit, parts.first, sequence) + column;
  float part[Team::kWarps];
#pragma unroll
  for (int i = 0; i < Team::kWarps; ++i) {
    part[i] = i < parts.count ? from[i * sums_place<kBatch>(1, 0, 0)] : 0;
  }
  return ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
}

}  // namespace weft::hopper
