// linear and gated_linear for one to eight rows, each of a sequence, on a resident CTA: a product
// whose weights come as a stream of pages, packed in the order and layout in which they are used.
//
// Layout. A unit is 16 columns of out (16 rows of the weight; gated_linear: 8 gate columns, then
// the 8 up columns beside them), a group 32 of k; a group of a unit is 1024 bytes, the A operands
// of two mma m16n8k16: in mma j, lane (g, t) = (lane / 4, lane % 4) has 16 bytes, k 8t + 4j .. 8t +
// 4j + 3 of column g, then of column g + 8. A slice is 8 groups, zeros where k has ended; a page
// has two slices, four of codes in e4m3fn, or eight in MXFP4.
//
// Folded units. Workers' shares are evener when they are not whole units. The last unit of a
// product may be folded, once or twice (`fold`): it has 16 >> fold columns, and a group of it holds
// 1 << fold groups of k, one in each half or quarter of the lanes: lane (g, t) has columns g % h
// and h + g % h, h = 8 >> fold, of the (g / h)-th. So it has half or a quarter of the slices. The
// row's groups stand side by side in B, in columns that are idle otherwise, and a sum is right in
// the lanes where both mean the same group. Only with one sequence: several have no idle columns.
//
// Compressed slices (windowed.h) begin with a header of 128 bytes: for each row of A the
// exponent of what scales its sums, then the weights that are listed. Then the groups, 768 bytes
// each: 16 bytes a lane, the low parts of its 16 weights, and 8 bytes a lane, their high parts; the
// word of registers 2q and 2q + 1 of mma j has the bytes of four weights, the j-th word of high
// parts those of all four registers, by number. Beyond k, where the row is zero, weights are
// anything. Weights become bf16 as they go from shared memory to registers, eleven instructions for
// eight of them.
//
// Slices of codes in e4m3fn (hopper_fp8.h) begin with the scales of their rows of A, one for each
// 128 of k (fp8_scale_place()), as f32. Then the groups, 512 bytes each: 16 bytes a lane, a word
// the codes of two registers. The sums of each half of such a slice are scaled before they are
// added to the unit's. Units of which some are folded have one scale a row: weights that are scaled
// in blocks of 128 of k are not folded.
//
// Slices of codes in MXFP4 (hopper_mx.h) begin with the scales of their rows of A, one for each
// group, in e8m0. Then the groups, 256 bytes each: 8 bytes a lane, a word the codes of one row: its
// k in ascending order are the pairs of the word. Weights are bf16, scales and all, when they are
// in registers. Never folded.
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
#include "ops/linear/hopper_fp8.h"
#include "ops/linear/hopper_layout.h"
#include "ops/linear/hopper_mx.h"
#include "ops/linear/windowed.h"

namespace weft::hopper {

using namespace windowed;  // NOLINT(google-build-using-namespace): numbers of its form

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

/// What the B operands of a slice are read from: of a unit that is folded, columns that are idle
/// otherwise have other groups of k, and what the lanes read is again one run.
template <int kBatch>
struct RowSlice {
  uint32_t from;    ///< in shared memory, of this lane
  uint32_t stride;  ///< to the next group of A
  bool has_column;  ///< this lane's column is in use

  __device__ __forceinline__ RowSlice(int lane, uint32_t row, int slice, int fold)
      : stride(kRowGroupBytes<kBatch> << fold) {
    const int lanes = 4 * row_columns(kBatch) << fold;
    from = row + slice * (kSliceGroups * stride) + (lane & (lanes - 1)) * 16;
    has_column = lane < lanes;
  }
  __device__ __forceinline__ void advance() { from += kSliceGroups * stride; }
};

/// The rows' operands of some groups, in the lanes of the columns that are in use; what the other
/// lanes hold goes to columns that nobody reads. To be made once for many loads, and near them:
/// registers that are never written in some lanes count as taken from the first time on that
/// somebody may have, in a loop around all else too.
template <int kBatch>
struct RowGroups {
  static constexpr int kGroups = 4;
  uint4 group[kGroups] = {};

  __device__ __forceinline__ void load(const RowSlice<kBatch>& row, int first) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      load_shared_if(row.has_column, row.from + (first + i) * row.stride, group[i]);
    }
  }
  /// Groups first and first + 1 of each half of a slice, by turns.
  __device__ __forceinline__ void load_halves(const RowSlice<kBatch>& row, int first) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int which = first + i / 2 + i % 2 * (kSliceGroups / 2);
      load_shared_if(row.has_column, row.from + which * row.stride, group[i]);
    }
  }
  /// One of them alone.
  __device__ __forceinline__ void load_one(const RowSlice<kBatch>& row, int which) {
    load_shared_if(row.has_column, row.from + which * row.stride, group[0]);
  }
};

/// Products of two pairs of bf16, rounded; subnormals are numbers like any other.
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

/// A slice of weights in registers. A page is free again as soon as its slices are here, which for
/// the first slices of a product is before the row has come: registers are part of the ring.
struct WeightSlice {
  static constexpr uint32_t kOnes = 127u << 23 | 127u;

  uint4 group[kSliceGroups][2];
  /// Exponents of what scales this lane's rows of A: << 23, and as a number. Of fp8: the scale that
  /// the slice's header has in this lane's place.
  uint32_t scales;
  uint32_t extra;  ///< in a lane each: a weight that is listed, or 0

  /// `from`: of this lane, in shared memory.
  __device__ __forceinline__ void load(uint32_t from) {
    scales = kOnes;
    extra = 0;
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      group[i][0] = load_shared_bits(from + i * kGroupBytes);
      group[i][1] = load_shared_bits(from + i * kGroupBytes + kGroupBytes / 2);
    }
  }
  /// A compressed slice. `from`: in shared memory.
  __device__ __forceinline__ void expand(int lane, uint32_t from) {
    const uint32_t exponent = from + lane / 4;
    scales = load_shared_byte(exponent) << 23 | load_shared_byte(exponent + kUnitColumns / 2);
    extra = 0;
    load_shared_if(lane < kMostListed, from + kUnitColumns + lane * 4, extra);
    const uint32_t low = from + kSliceHeaderBytes + lane * 16;
    const uint32_t high = from + kSliceHeaderBytes + kLowBytes + lane * 8;
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int done = 0; done < kSliceGroups; done += kAtOnce) {
      uint4 lows[kAtOnce];
      uint2 highs[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        lows[i] = load_shared_bits(low + (done + i) * kCompressedGroupBytes);
        highs[i] = load_shared_pair(high + (done + i) * kCompressedGroupBytes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        group[done + i][0] = weights_of(lows[i].x, lows[i].y, highs[i].x);
        group[done + i][1] = weights_of(lows[i].z, lows[i].w, highs[i].y);
      }
    }
  }

  /// A slice of codes. `from`: in shared memory.
  __device__ __forceinline__ void widen(int lane, uint32_t from) {
    scales = load_shared_word(from + lane * 4);
    extra = 0;
    const uint32_t codes = from + kSliceHeaderBytes + lane * 16;
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      const uint4 words = load_shared_bits(codes + i * kFp8GroupBytes);
      group[i][0] = numbers_of(words.x, words.y);
      group[i][1] = numbers_of(words.z, words.w);
    }
  }

  /// A slice in MXFP4. `from`: in shared memory.
  __device__ __forceinline__ void widen_mx(int lane, uint32_t from) {
    scales = kOnes;
    extra = 0;
    const uint32_t of_row = from + lane / 4 * mx_scale_place(1, 0);
    const uint2 upper = load_shared_pair(of_row);
    const uint2 lower = load_shared_pair(of_row + mx_scale_place(kUnitColumns / 2, 0));
    const uint32_t codes = from + kSliceHeaderBytes + lane * 8;
    // A byte of a word as two bf16.
    const auto scale = [](uint2 of_groups, int i) {
      return __byte_perm(i < 4 ? of_groups.x : of_groups.y, 0, 0x4040 | (i % 4) * 0x0101) << 7;
    };
#pragma unroll
    for (int i = 0; i < kSliceGroups; ++i) {
      const uint2 words = load_shared_pair(codes + i * kMxGroupBytes);
      const uint32_t of_upper = scale(upper, i);
      const uint32_t of_lower = scale(lower, i);
      const auto number = [](uint32_t word, int pair, uint32_t factor) {
        return multiply_bf16(multiply_bf16(mx_pair(word, pair), kMxUnits), factor);
      };
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        group[i][j] = {number(words.x, 2 * j, of_upper), number(words.y, 2 * j, of_lower),
                       number(words.x, 2 * j + 1, of_upper), number(words.y, 2 * j + 1, of_lower)};
      }
    }
  }

  /// sums += this, which is of codes, times a slice of the rows: each half of k by itself.
  template <int kBatch>
  __device__ __forceinline__ void multiply_codes(int lane, const RowSlice<kBatch>& row,
                                                 RowGroups<kBatch>& part, UnitSums& sums) const {
    constexpr int kHalfGroups = kSliceGroups / 2;
    UnitSums halves;  // part 2h + j: mma j of half h
#pragma unroll
    for (int done = 0; done < kHalfGroups; done += 2) {
      part.load_halves(row, done);
#pragma unroll
      for (int i = 0; i < RowGroups<kBatch>::kGroups; ++i) {
        const int half = i % 2;
        const auto& weights = group[half * kHalfGroups + done + i / 2];
        const uint4& b = part.group[i];
        mma_bf16(halves.part[2 * half], weights[0], b.x, b.y);
        mma_bf16(halves.part[2 * half + 1], weights[1], b.z, b.w);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scale =
            __uint_as_float(__shfl_sync(~0u, scales, fp8_scale_place(lane / 4 + 8 * r, half)));
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          const float sum = halves.part[2 * half][c] + halves.part[2 * half + 1][c];
          sums.part[half][c] = fmaf(scale, sum, sums.part[half][c]);
        }
      }
    }
  }

  /// sums += this times a slice of the rows in shared memory, which comes through `part`.
  template <int kBatch>
  __device__ __forceinline__ void multiply(int lane, const RowSlice<kBatch>& row,
                                           RowGroups<kBatch>& part, UnitSums& sums) const {
    constexpr int kAtOnce = RowGroups<kBatch>::kGroups;
#pragma unroll
    for (int done = 0; done < kSliceGroups; done += kAtOnce) {
      part.load(row, done);
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
  /// Four registers of the operand A, of two words of codes.
  __device__ __forceinline__ static uint4 numbers_of(uint32_t registers01, uint32_t registers23) {
    return {multiply_bf16(first_pair(registers01), kFp8Units),
            multiply_bf16(second_pair(registers01), kFp8Units),
            multiply_bf16(first_pair(registers23), kFp8Units),
            multiply_bf16(second_pair(registers23), kFp8Units)};
  }
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
  __device__ __forceinline__ static void multiply_listed(int lane, const RowSlice<kBatch>& row,
                                                         uint32_t listed, RowGroups<kBatch>& part,
                                                         UnitSums& sums) {
    const int k = listed >> 16 & 0xff;
    const int of_row = listed >> 24 & 0xf;
    const bool mine = lane == of_row % 8 * 4 + k / 8 % 4;
    const int number = of_row / 8 + k % 4 / 2 * 2;
    part.load_one(row, k / kGroupK);
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

/// Multiplies the rows with `units` units over k, the last of them folded `fold` times, that come
/// through the ring. kFp8, kMx: their form may be that; kernels of their own, because others would
/// pay for it with registers.
///
/// A row (or several together) comes from `source`. source.ask(row, runs, slices) asks for what of
/// it this warp makes; source.make(row) waits for that and leaves it in `row` as store_row_quad()
/// does, zeros beyond k; then a barrier, and the row is
/// there; source.publish() comes right after it. Source::kRowFirst: that is
/// before the first weights are fetched, and has the registers; otherwise they are held while the
/// row is on its way. `runs` are those of the first block, `slices` those of a unit that is not
/// folded. Where the row is too large for that (source.streams()), it is not made: the slices that
/// a warp needs come in turn to one of two places of its own, source.take(i, next) bringing the
/// slice for the i-th of a run and asking for slice `next` for the one after it, -1: there is none.
/// source.await_page(barrier, phase) waits for a page. Where units have rows of their own, which
/// lie one after the other, source.head_slices(unit, slices) says how many slices are before a
/// unit's.
///
/// finish(first_unit, units, runs, slices) is called by the team, all warps alike, after each
/// block, when the sums for gather() are there; `slices`: of a unit that is not folded. The loader
/// waits for nobody but this, so the pages come.
template <int kBatch, bool kFp8, bool kMx, class Source, class Finish>
__device__ __forceinline__ void stream_product(const Team& team, const PageRing& ring,
                                               ProductState* states, char* row, int k, int units,
                                               int fold, StreamForm form, Source& source,
                                               float* sums_memory, Finish finish) {
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
  const auto fold_of = [&](int unit) { return kBatch == 1 && unit + 1 == units ? fold : 0; };
  // Said anew each time: not even its address should take a register through the loop.
  const auto state = [&]() -> ProductState& { return states[made_here(threadIdx.x) / 32]; };
  PageCursor page;
  uint32_t last_arrivals;  // of a run's last slice: those for slices that its page lacks, too
  WeightSlice held;
  // Fetched by all: registers that are written on some ways only would stay taken outside of this
  // function. `last`: of the warp's run.
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
      page.jump(kTeamWarps >> page_shift, ring.slots);
    }
  };
  const auto leave = [&](int of_unit, int unit_fold, const UnitSums& sums, uint32_t scales) {
    const int half = kUnitColumns / 2 >> unit_fold;
#pragma unroll
    for (int i = 0; i < 2 / row_parts(kBatch); ++i) {
      float2 columns = sums.columns<kBatch>(i == 1);
      columns.x *= __uint_as_float(scales & 0xffu << 23);
      columns.y *= __uint_as_float(scales << 23);
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
    runs = block_runs(k, units, fold, block);
    left = runs.count(warp);
    unit = small_quotient(runs.first(warp), slices);
    const int of_unit = runs.first(warp) - unit * slices;  // the first slice
    begin_unit(block, of_unit);
    const int beyond = warp == runs.more - 1 ? -runs.more & ((1 << page_shift) - 1) : 0;
    last_arrivals = static_cast<uint32_t>((1 + beyond) * (kReaders >> page_shift));
    page = state().cursor;
    page.jump(warp >> page_shift, ring.slots);
  };
  const auto fetch_first = [&] { fetch(left > 0, left == 1); };

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
  team.sync();
  source.publish();
  if constexpr (Source::kRowFirst) {
    fetch_first();
  }
  RowGroups<kBatch> part;
  const auto multiply = [&](const RowSlice<kBatch>& slice, UnitSums& sums) {
    if (codes) {
      held.template multiply_codes<kBatch>(lane, slice, part, sums);
    } else {
      held.template multiply<kBatch>(lane, slice, part, sums);
    }
  };
#pragma unroll 1
  for (int block = 0; block < units; block += kBlockUnits) {
    if (block > 0) {
      begin(block);
      team.sync();  // the last block's sums have been gathered
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
        fetch(true, left == 1);
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
      state().cursor.advance((runs.slices() + (1 << page_shift) - 1) >> page_shift, ring.slots);
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
