// Experts' products for slots that are few to an expert, on sm_90a, which are bound by reading the
// weights of those that were drawn. Each block sorts the slots for itself. An item is one expert's
// product of up to kSlots slots with some rows of weights. A team of warps, one or some, takes its
// chunks of k by turns, each through a ring of its own, which runs on from item to item, and adds
// up their sums at the item's end. Weights are the side of 16 of the tensor cores' products, slots
// that of 8. Codes in MXFP4, of which a warp has the most to do, come by the copy engine, other
// weights by each lane's copies.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "arch/device.h"
#include "arch/hopper/attention.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/resident.cuh"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/warp.cuh"
#include "base/divide.h"
#include "ops/linear/forms/mxfp4/hopper_prefill.cuh"
#include "ops/moe/hopper_slots.cuh"

namespace weft::hopper {

inline constexpr int kMostFewSlots = 1024;
inline constexpr int kMostFewExperts = 512;
inline constexpr int64_t kMostFewColumns = int64_t{16} << 20;  ///< of all slots: see few_item()
/// Slots to an expert, in the mean: more of bf16 are multiplied faster by others.
inline constexpr int64_t kMostOfFew = 4, kMostOfFewCodes = 16;

template <SlotWeights kForm, bool kIsGated, int kTiles>
struct FewTile {
  static constexpr bool kGated = kIsGated;
  static constexpr bool kMx = kForm == SlotWeights::mxfp4;
  static constexpr bool kFp8 = kForm == SlotWeights::e4m3;
  static constexpr int kSlotTiles = kTiles;  ///< of 8 slots
  static constexpr int kSlots = 8 * kSlotTiles;
  static constexpr int kRowTiles = 2;  ///< of 16 rows of weights: in each 8 of gate and 8 of up
  static constexpr int kWarps = kMx ? (kSlotTiles == 1 ? 24 : 16) : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = 16 * kRowTiles;
  static constexpr int kOutColumns = kRows / (kGated ? 2 : 1);
  /// Elements of k of a chunk.
  static constexpr int kDepth = kMx || kFp8 ? 128 : 64;
  static constexpr int kBlocks = kDepth / kMxBlock;
  static constexpr int kRowBytes = kMx ? kDepth / 2 : kFp8 ? kDepth : kDepth * 2;
  static constexpr int kRowPieces = kRowBytes / 16;
  static constexpr int kRowStep = 32 / kRowPieces;  ///< rows that a warp copies at once
  static constexpr int kWeightBytes = kRows * kRowBytes;
  static constexpr int kScaleBytes = kFp8 ? 4 : 0;  ///< of each of two rows
  static constexpr int kStageBytes = kWeightBytes + 4 * kScaleBytes;
  static constexpr int kStages = kMx ? 2 : 3;
  static constexpr int kBlocksOfUnit = kMx || kSlotTiles > 1 ? 1 : 2;  ///< on a multiprocessor
  static constexpr int kSums = kRowTiles * kSlotTiles * 4;             ///< of a thread

  /// Where a row's piece of 16 bytes lies in its row, so that what lanes read at once lies in banks
  /// apart. Of a row r + s, where r < kRowStep, which divides s: piece_at(r, piece) ^ piece_at(s,
  /// 0). Of MXFP4 as the copy engine swizzles 64 bytes.
  __device__ static constexpr int piece_at(int row, int piece) {
    return kMx ? piece ^ row / 2 % 4 : kFp8 ? piece ^ row % 4 * 2 : piece ^ row % 2 * 4;
  }
  /// Of a stage's row: whether it is of up, and its column among the item's. The copy engine puts
  /// all of gate's before those of up.
  __device__ static constexpr int which(int row) {
    return !kGated ? 0 : kMx ? row / kOutColumns : row / 8 % 2;
  }
  __device__ static constexpr int column(int row) {
    return !kGated ? row : kMx ? row % kOutColumns : row / 16 * 8 + row % 8;
  }
  /// The first of eight rows of a tile of 16, of its upper or lower half.
  __device__ static constexpr int half_tile(int tile, int half) {
    return kMx && kGated ? half * kOutColumns + tile * 8 : tile * 16 + half * 8;
  }
};

/// What the copy engine is told of codes in MXFP4: boxes of an item's rows by a chunk of k.
struct MxMaps {
  CUtensorMap w[2];  ///< gate and up, or one alone, twice
};
struct NoMaps {};
template <class T>
using FewMaps = std::conditional_t<T::kMx, MxMaps, NoMaps>;

/// Dynamic shared memory of a block.
template <class T>
struct FewShared {
  char ring[T::kWarps][T::kStages][T::kStageBytes];
  float sums[T::kWarps][T::kSums][32];
  uint32_t numbers[T::kMx ? kMxPairs : 1][32];  ///< what two codes are, for each lane
  Barrier full[T::kMx ? T::kWarps : 1][T::kStages];
  uint16_t slots[kMostFewSlots];  ///< sorted by expert
  /// Up to kSlots slots of one expert each: 20 bits of the expert, then 12 of the first in slots[].
  uint32_t groups[kMostFewSlots];
  int ends[T::kWarps];  ///< of scans
  int group_count;
  int begins[kMostFewExperts + 1];  ///< where an expert's slots begin in slots[]

  /// Of sort_few(), in the ring: slots of each expert before those of a warp.
  __device__ auto counts() {
    static_assert(sizeof(ring) >= sizeof(uint16_t[T::kWarps][kMostFewExperts]));
    return reinterpret_cast<uint16_t(*)[kMostFewExperts]>(ring);
  }
};

/// slots, begins and groups of what was drawn.
template <class T>
__device__ void sort_few(const PrefillDraw& drawn, int slots, FewShared<T>& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const auto experts = static_cast<int>(drawn.experts);
  const auto counts = shared.counts();
  constexpr int kRounds = ceil_div(kMostFewSlots, T::kThreads);
  const int each = ceil_div(ceil_div(slots, 32), T::kWarps) * 32;  // of a warp
  int ids[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int slot = warp * each + i * 32 + lane;
    ids[i] = i * 32 < each && slot < slots ? drawn.ids[slot] : -1;
  }
  for (int e = lane; e < experts; e += 32) {
    counts[warp][e] = 0;
  }
  __syncwarp();
  int before[kRounds];  // slots of the same expert and warp
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const uint32_t same = __match_any_sync(~0u, ids[i]);
    const int lower = __popc(same & ((1u << lane) - 1));
    const bool there = ids[i] >= 0;
    before[i] = there ? counts[warp][ids[i]] + lower : 0;
    __syncwarp();
    if (there && lower == 0) {
      counts[warp][ids[i]] += static_cast<uint16_t>(__popc(same));
    }
    __syncwarp();
  }
  __syncthreads();
  // A thread some experts in a row: their slots, and their groups in the upper half.
  constexpr int kExperts = ceil_div(kMostFewExperts, T::kThreads);
  int totals[kExperts];
  int own = 0;
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = thread * kExperts + i;
    totals[i] = 0;
    for (int w = 0; w < T::kWarps && e < experts; ++w) {
      const int count = counts[w][e];
      counts[w][e] = static_cast<uint16_t>(totals[i]);
      totals[i] += count;
    }
    own += totals[i] + (ceil_div(totals[i], T::kSlots) << 16);
  }
  const int upto = sum_up_to(lane, own);
  if (lane == 31) {
    shared.ends[warp] = upto;
  }
  __syncthreads();
  int begin = upto - own;
  for (int w = 0; w < warp; ++w) {
    begin += shared.ends[w];
  }
#pragma unroll
  for (int i = 0; i < kExperts; ++i) {
    const int e = thread * kExperts + i;
    const int first = begin & 0xffff;
    if (e < experts) {
      shared.begins[e] = first;
    }
    int group = begin >> 16;
    for (int done = 0; done < totals[i]; done += T::kSlots) {
      shared.groups[group++] = static_cast<uint32_t>(e << 12 | (first + done));
    }
    begin = first + totals[i] + (group << 16);
  }
  if (thread == T::kThreads - 1) {
    shared.begins[experts] = slots;
    shared.group_count = begin >> 16;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    if (ids[i] >= 0) {
      shared.slots[shared.begins[ids[i]] + counts[warp][ids[i]] + before[i]] =
          static_cast<uint16_t>(warp * each + i * 32 + lane);
    }
  }
  __syncthreads();
}

/// What a block makes at a time.
struct FewItem {
  int expert;
  int first, count;  ///< of slots[]
  int column;
};
/// (Items are at most kMostFewColumns / 16, which small_quotient() divides.)
template <class T>
__device__ FewItem few_item(const FewShared<T>& shared, int columns, int item) {
  const int group = small_quotient(item, columns);
  const uint32_t packed = shared.groups[group];
  const auto expert = static_cast<int>(packed >> 12);
  const auto first = static_cast<int>(packed & 0xfff);
  return {expert, first, min(T::kSlots, shared.begins[expert + 1] - first),
          (item - group * columns) * T::kOutColumns};
}

/// The warps of a block, `size` to a team.
struct FewTeam {
  int size;
  int item;    ///< the team's first
  int stride;  ///< from one of its items to the next
  int index;   ///< in the block
  int member;  ///< which of it the warp is
};

/// A warp's way through the chunks of its team's items: chunk c of the i-th is the warp's whose
/// turn it is at i * chunks + c.
struct FewCursor {
  int item, chunk;

  __device__ void settle(const FewTeam& team, int chunks) {
    while (chunk >= chunks) {
      chunk -= chunks;
      item += team.stride;
    }
  }
  __device__ void advance(const FewTeam& team, int chunks) {
    chunk += team.size;
    settle(team, chunks);
  }
};

/// A warp's copies of codes in MXFP4, by the copy engine, and its scales, in registers.
template <class T>
struct FewMxFeed {
  FewCursor at;
  int known = -1;  ///< the item that the rest is of
  FewItem item = {};
  /// Of the row that the lane has: the word that its first scale is in, which byte that is, and
  /// behind which byte there is no more.
  const uint32_t* scales = nullptr;
  int past = 0, end = 0;
  uint32_t words[2] = {};  ///< of the chunk whose copy was asked for last

  __device__ void begin(const SlotsProduct& args, const FewShared<T>& shared, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    static_assert(T::kRows == 32);
    known = at.item;
    item = few_item(shared, columns, known);
    const int blocks = args.k / kMxBlock;
    const int column = min(item.column + T::column(lane), args.n - 1);
    const uint8_t* const own =
        scales_of(args.w[T::which(lane)], item.expert) + int64_t{column} * blocks;
    past = static_cast<int>(reinterpret_cast<uintptr_t>(own) % 4);
    end = past + blocks;
    scales = reinterpret_cast<const uint32_t*>(own - past);
  }

  __device__ void copy(const SlotsProduct& args, const FewMaps<T>& maps, const FewShared<T>& shared,
                       int items, int columns, char* stage, Barrier& full) {
    if (at.item >= items) {
      return;
    }
    if (at.item != known) {
      begin(args, shared, columns);
    }
    if (elect_one()) {
      full.arrive_expect(T::kWeightBytes);
#pragma unroll
      for (int which = 0; which < (T::kGated ? 2 : 1); ++which) {
        load_plane_tile(stage + which * (T::kWeightBytes / 2), maps.w[which],
                        at.chunk * T::kRowBytes, item.column, item.expert, full);
      }
    }
    // The words that a row's scales lie in. Those of all rows end with a word.
    static_assert(T::kBlocks == 4);
    words[0] = scales[at.chunk];
    words[1] = at.chunk * 4 + 4 < end ? scales[at.chunk + 1] : 0;
  }
  /// Of the chunk whose copy was asked for last, `chunk`, the scales of the lane's row. Blocks that
  /// are not there are zeros: so are their scales.
  __device__ uint32_t scales_of_row(int chunk) const {
    const uint32_t four = __funnelshift_r(words[0], words[1], past * 8);
    const int left = end - past - chunk * 4;
    return left < 4 ? four & ((1u << (8 * left)) - 1) : four;
  }
};

/// A warp's copies of weights, a stage after the other.
template <class T>
struct FewFeed {
  FewCursor at;
  int known = -1;  ///< the item that the rest is of
  FewItem item = {};
  const char* from[2] = {};  ///< this lane's first piece of gate's rows, and of up's
  bool all_columns = false;  ///< all are there

  __device__ void begin(const SlotsProduct& args, const FewShared<T>& shared, int columns) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    known = at.item;
    item = few_item(shared, columns, known);
    all_columns = item.column + T::kOutColumns <= args.n;
#pragma unroll
    for (int which = 0; which < (T::kGated ? 2 : 1); ++which) {
      from[which] = static_cast<const char*>(of_expert(args.w[which], item.expert).data) +
                    (item.column + lane / T::kRowPieces) * row_stride(args) +
                    lane % T::kRowPieces * 16;
    }
  }
  /// Bytes.
  __device__ static int64_t row_stride(const SlotsProduct& args) {
    return args.w[0].first.stride * (T::kFp8 ? 1 : 2);
  }

  __device__ void copy(const SlotsProduct& args, const FewShared<T>& shared, int items, int columns,
                       char* stage) {
    if (at.item >= items) {
      return;
    }
    if (at.item != known) {
      begin(args, shared, columns);
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / T::kRowPieces;
    const int piece = lane % T::kRowPieces;
    char* const to = stage + row * T::kRowBytes;
    const int piece_of_row = T::piece_at(row, piece);
    const int64_t step = T::kRowStep * row_stride(args);
    const int along = at.chunk * T::kRowBytes;
    const auto each = [&](const auto& f) {  // of rows kRowStep apart
      const char* sources[2] = {from[0] + along, from[1] + along};
#pragma unroll
      for (int r = 0; r < T::kRows; r += T::kRowStep) {
        const char*& source = sources[T::which(r)];
        f(to + r * T::kRowBytes + (piece_of_row ^ T::piece_at(r, 0)) * 16, source, T::column(r));
        source += step;
      }
    };
    if (all_columns && (at.chunk + 1) * T::kDepth <= args.k) {
      each([](char* place, const char* source, int /*column*/) {
        copy_async_16(place, source, true);
      });
    } else {
      const bool in_k = at.chunk * T::kDepth + piece * (T::kDepth / T::kRowPieces) < args.k;
      each([&](char* place, const char* source, int column) {
        const bool there = in_k && item.column + row + column < args.n;
        copy_async_16(place, there ? source : from[0], there);
      });
    }
    if constexpr (T::kFp8) {
      if (lane <= T::which(8)) {  // of gate, and of up
        copy_async_4(
            stage + T::kWeightBytes + lane * T::kScaleBytes,
            block_scale(args.w[lane], item.expert, args.k, item.column, at.chunk * T::kDepth),
            true);
      }
    }
  }
};

/// A lane's parts of the rows of a that a chunk meets: of slot lane / 4 of each eight, elements
/// 8 (lane % 4) .. + 7 of each 32, which is as good an order for a sum as theirs. In the place of a
/// slot that is not there lies another: nobody stores its sums.
template <class T>
using FewRows = uint4[T::kSlotTiles][T::kBlocks];
/// `from`: where the lane's elements of each row begin.
template <class T>
__device__ __forceinline__ void load_few_rows(const uint16_t* const (&from)[T::kSlotTiles],
                                              int chunk, int k, FewRows<T>& to) {
  const int first = chunk * T::kDepth;
  const auto each = [&](const auto& f) {
#pragma unroll
    for (int i = 0; i < T::kSlotTiles * T::kBlocks; ++i) {
      const int at = first + i % T::kBlocks * kMxBlock;
      to[i / T::kBlocks][i % T::kBlocks] =
          f(reinterpret_cast<const uint4*>(from[i / T::kBlocks] + at), at);
    }
  };
  if (first + T::kDepth <= k) {
    each([](const uint4* own, int /*at*/) { return *own; });
  } else {
    const int own_first = static_cast<int>(threadIdx.x) % 4 * 8;
    each([&](const uint4* own, int at) { return at + own_first < k ? *own : uint4{}; });
  }
}

template <class T>
using FewSums = float[T::kRowTiles][T::kSlotTiles][4];

template <class T>
__device__ void multiply_few_bf16(const char* stage, const FewRows<T>& rows, FewSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t weights = smem_address(stage) + lane / 4 * T::kRowBytes;
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    const uint32_t own = weights + T::piece_at(lane / 4, b * 4 + lane % 4) * 16;
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      const uint4 upper = load_shared_bits(own + i * 16 * T::kRowBytes);
      const uint4 lower = load_shared_bits(own + (i * 16 + 8) * T::kRowBytes);
#pragma unroll
      for (int t = 0; t < T::kSlotTiles; ++t) {
        mma_bf16(sums[i][t], {upper.x, lower.x, upper.y, lower.y}, rows[t][b].x, rows[t][b].y);
        mma_bf16(sums[i][t], {upper.z, lower.z, upper.w, lower.w}, rows[t][b].z, rows[t][b].w);
      }
    }
  }
}

template <class T>
__device__ void multiply_few_fp8(const char* stage, const FewRows<T>& rows, FewSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t weights = smem_address(stage) + lane / 4 * T::kRowBytes + lane % 2 * 8;
  FewSums<T> own = {};
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    const uint32_t place = weights + T::piece_at(lane / 4, b * 2 + lane % 4 / 2) * 16;
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      const uint2 upper = load_shared_pair(place + i * 16 * T::kRowBytes);
      const uint2 lower = load_shared_pair(place + (i * 16 + 8) * T::kRowBytes);
      const uint4 a[2] = {{e4m3_pair(upper.x), e4m3_pair(lower.x), e4m3_pair(upper.x >> 16),
                           e4m3_pair(lower.x >> 16)},
                          {e4m3_pair(upper.y), e4m3_pair(lower.y), e4m3_pair(upper.y >> 16),
                           e4m3_pair(lower.y >> 16)}};
#pragma unroll
      for (int t = 0; t < T::kSlotTiles; ++t) {
        mma_bf16(own[i][t], a[0], rows[t][b].x, rows[t][b].y);
        mma_bf16(own[i][t], a[1], rows[t][b].z, rows[t][b].w);
      }
    }
  }
  const uint2 scales = load_shared_pair(smem_address(stage) + T::kWeightBytes);  // of gate, of up
#pragma unroll
  for (int i = 0; i < T::kRowTiles; ++i) {
#pragma unroll
    for (int t = 0; t < T::kSlotTiles; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float scale = __uint_as_float(T::kGated && c >= 2 ? scales.y : scales.x);
        sums[i][t][c] = fmaf(scale, own[i][t][c], sums[i][t][c]);
      }
    }
  }
}

/// The same of codes in MXFP4; `four`: a chunk's scales of the row that the lane has. Products of a
/// block are summed without its scale.
template <class T>
__device__ void multiply_few_mx(const FewShared<T>& shared, const char* stage, uint32_t four,
                                const FewRows<T>& rows, FewSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t weights = smem_address(stage) + lane / 4 * T::kRowBytes + lane % 4 * 4;
  const uint32_t numbers = smem_address(shared.numbers[0] + lane);
  uint32_t scales[T::kRowTiles][2];
#pragma unroll
  for (int i = 0; i < T::kRowTiles * 2; ++i) {
    scales[i / 2][i % 2] = __shfl_sync(~0u, four, T::half_tile(i / 2, i % 2) + lane / 4);
  }
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    const uint32_t place = weights + T::piece_at(lane / 4, b) * 16;
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      uint32_t upper[4];
      uint32_t lower[4];
      mx_pairs(load_shared_word(place + T::half_tile(i, 0) * T::kRowBytes), numbers, upper);
      mx_pairs(load_shared_word(place + T::half_tile(i, 1) * T::kRowBytes), numbers, lower);
      const float scale[2] = {mx_scale_of(scales[i][0], b), mx_scale_of(scales[i][1], b)};
#pragma unroll
      for (int t = 0; t < T::kSlotTiles; ++t) {
        float own[4] = {};
        mma_bf16(own, {upper[0], lower[0], upper[1], lower[1]}, rows[t][b].x, rows[t][b].y);
        mma_bf16(own, {upper[2], lower[2], upper[3], lower[3]}, rows[t][b].z, rows[t][b].w);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[i][t][c] = fmaf(scale[c / 2], own[c], sums[i][t][c]);
        }
      }
    }
  }
}

/// A barrier of a team's warps; a block has 16 of the hardware's, and may have more warps.
__device__ __forceinline__ void meet(const FewTeam& team) {
  if (team.size == 1) {
    __syncwarp();
  } else {
    named_sync(team.index, team.size * 32);
  }
}

/// `team_size`: see FewTeam. `early`: there have been first products of the same draw, so that what
/// was drawn, and the weights, may be read before the kernel before is complete: whichever read
/// what was drawn first let no kernel begin until it was there.
template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksOfUnit)
    multiply_few(const __grid_constant__ SlotsProduct args, const __grid_constant__ FewMaps<T> maps,
                 int slots, int team_size, bool early) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<FewShared<T>*>(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (T::kMx) {
    fill_mx_pairs<T::kThreads>(shared.numbers);
    if (lane < T::kStages) {
      shared.full[warp][lane].init(1);
    }
    fence_barriers();
  }
  if (!early) {
    wait_for_earlier();
  }
  let_next_begin();
  sort_few(args.drawn, slots, shared);
  if constexpr (T::kMx) {
    fence_shared();  // the ring had the sort's counts, before the copy engine writes it
    __syncthreads();
  }
  if (blockIdx.x == 0 && !early) {  // for second products that are not made here
    const auto experts = static_cast<int>(args.drawn.experts);
    for (int i = static_cast<int>(threadIdx.x); i <= experts + slots; i += T::kThreads) {
      args.drawn.order[i] = i <= experts ? shared.begins[i] : shared.slots[i - experts - 1];
    }
  }

  const int columns = ceil_div(args.n, T::kOutColumns);
  const int items = shared.group_count * columns;
  const int chunks = ceil_div(args.k, T::kDepth);
  const int teams = T::kWarps / team_size;
  const int index = warp / team_size;
  const FewTeam team{team_size, static_cast<int>(blockIdx.x) * teams + index,
                     static_cast<int>(gridDim.x) * teams, index, warp % team_size};
  auto* const ring = shared.ring[warp];
  FewCursor at{team.item, team.member};
  at.settle(team, chunks);
  std::conditional_t<T::kMx, FewMxFeed<T>, FewFeed<T>> weights{at};
  const auto copy = [&](int to) {
    if constexpr (T::kMx) {
      weights.copy(args, maps, shared, items, columns, ring[to], shared.full[warp][to]);
    } else {
      weights.copy(args, shared, items, columns, ring[to]);
      commit_copies();
    }
    weights.at.advance(team, chunks);
  };
#pragma unroll 1
  for (int i = 0; i < T::kStages - 1; ++i) {
    copy(i);
  }
  if (early) {
    wait_for_earlier();
  }
  int stage = 0;
  uint32_t parity = 0;      // of MXFP4's barriers
  int order = team.member;  // of the warp among those who have the item's chunks
  for (int item = team.item; item < items; item += team.stride) {
    const FewItem of = few_item(shared, columns, item);
    const uint16_t* rows_from[T::kSlotTiles];
#pragma unroll
    for (int t = 0; t < T::kSlotTiles; ++t) {
      const int slot = shared.slots[of.first + min(t * 8 + lane / 4, of.count - 1)];
      rows_from[t] = static_cast<const uint16_t*>(args.a.data) +
                     small_quotient(slot, args.per_row) * args.a.stride + lane % 4 * 8;
    }
    FewSums<T> sums = {};
    while (at.item == item) {
      FewRows<T> rows;
      if constexpr (T::kMx) {
        load_few_rows<T>(rows_from, at.chunk, args.k, rows);
        const uint32_t scales = weights.scales_of_row(at.chunk);
        __syncwarp();  // the stage before has been multiplied by all
        copy(stage == 0 ? T::kStages - 1 : stage - 1);
        shared.full[warp][stage].wait(parity);
        multiply_few_mx<T>(shared, ring[stage], scales, rows, sums);
        parity ^= stage + 1 == T::kStages ? 1 : 0;
      } else {
        await_copies<T::kStages - 2>();
        __syncwarp();  // all lanes' have landed, and the stage before has been read by all
        load_few_rows<T>(rows_from, at.chunk, args.k, rows);
        copy(stage == 0 ? T::kStages - 1 : stage - 1);
        if constexpr (T::kFp8) {
          multiply_few_fp8<T>(ring[stage], rows, sums);
        } else {
          multiply_few_bf16<T>(ring[stage], rows, sums);
        }
      }
      stage = stage + 1 == T::kStages ? 0 : stage + 1;
      at.advance(team, chunks);
    }
    auto* const parts = shared.sums + team.index * team.size;
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) {  // along k
      parts[order][i][lane] = sums[i / (4 * T::kSlotTiles)][i / 4 % T::kSlotTiles][i % 4];
    }
    meet(team);
    constexpr int kOfTile = T::kGated ? 2 : 4;
    for (int i = team.member; i < T::kSums / 4 * kOfTile; i += team.size) {
      const int part = i % kOfTile;
      const int tile = i / kOfTile;
      const int slot = tile % T::kSlotTiles * 8 + lane % 4 * 2 + part % 2;
      const int column = of.column + tile / T::kSlotTiles * (T::kOutColumns / T::kRowTiles) +
                         part / 2 * 8 + lane / 4;
      if (slot >= of.count || column >= args.n) {
        continue;
      }
      const auto sum = [&](int which) {
        float x = 0;
        for (int m = 0; m < team.size; ++m) {
          x += parts[m][tile * 4 + which][lane];
        }
        return x;
      };
      const float x =
          column_of<T::kGated>(args, of.expert, column, sum(part), T::kGated ? sum(part + 2) : 0);
      const int64_t to = shared.slots[of.first + slot] * args.out.stride + column;
      if constexpr (T::kGated) {
        static_cast<__nv_bfloat16*>(args.out.data)[to] = __float2bfloat16_rn(x);
      } else {
        static_cast<float*>(args.out.data)[to] = x;
      }
    }
    meet(team);
    order = (order + team.size - chunks % team.size) % team.size;
  }
  await_copies<0>();
}

/// Whether it is for the products of so many slots. Weights in e4m3 must have rows of whole 16
/// bytes, which are copied at once.
inline bool few_slots(const SlotsProduct& args, SlotWeights weights, int slots) {
  const bool codes = weights != SlotWeights::bf16;
  return slots <= kMostFewSlots && args.drawn.experts <= kMostFewExperts &&
         slots <= (codes ? kMostOfFewCodes : kMostOfFew) * args.drawn.experts &&
         (weights != SlotWeights::e4m3 || (args.k % 16 == 0 && args.w[0].first.stride % 16 == 0)) &&
         int64_t{slots} * args.n <= kMostFewColumns;
}

/// How many warps to a team: of `items` of so many chunks, for so many warps. MXFP4 is bound by
/// what a warp computes, so that the team with the most items is to be done soonest, an item taking
/// a chunk's time for its sums; others by reading, of which each team shall have six items.
template <class T>
int few_team(double items, int chunks, int warps) {
  int best = 1;
  if constexpr (T::kMx) {
    double soonest = 0;
    for (int team = 1; team <= std::min(chunks, T::kWarps); ++team) {
      const double time =
          std::ceil(items * team / warps) * (static_cast<double>(chunks) / team + 1);
      if (T::kWarps % team == 0 && (team == 1 || time < soonest)) {
        best = team;
        soonest = time;
      }
    }
  } else {
    while (T::kWarps % (2 * best) == 0 && 2 * best <= chunks && items * best < 6.0 * warps) {
      best *= 2;
    }
  }
  return best;
}

/// Starts it. Errors: device.
template <SlotWeights kWeights, bool kGated>
Status launch_few(const SlotsProduct& args, int slots, bool early, Stream stream) {
  const auto launch = [&]<int kTiles>() -> Status {
    using Tile = FewTile<kWeights, kGated, kTiles>;
    const int blocks = stream.device->info().units * Tile::kBlocksOfUnit;
    // So many experts do that many slots draw in the mean.
    const auto experts = static_cast<double>(args.drawn.experts);
    const double drawn = experts * (1 - std::pow(1 - 1 / experts, slots));
    const int team = few_team<Tile>(drawn * ceil_div(args.n, Tile::kOutColumns),
                                    ceil_div(args.k, Tile::kDepth), blocks * Tile::kWarps);
    FewMaps<Tile> maps;
    if constexpr (Tile::kMx) {
      for (int i = 0; i < 2; ++i) {
        const ExpertMatrices& w = args.w[kGated ? i : 0];
        WEFT_ASSIGN(maps.w[i], tensor_map({.data = w.first.data,
                                           .rows = args.n,
                                           .columns = args.k / 2,
                                           .stride_bytes = args.k / 2,
                                           .box_rows = Tile::kOutColumns,
                                           .box_columns = Tile::kRowBytes,
                                           .planes = args.drawn.experts,
                                           .plane_bytes = std::max<int64_t>(w.pitch, 16)}));
      }
    }
    return launch_kernel(multiply_few<Tile>,
                         {.blocks = blocks,
                          .threads = Tile::kThreads,
                          .shared_bytes = sizeof(FewShared<Tile>),
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)},
                         args, maps, slots, team, early);
  };
  if constexpr (kWeights != SlotWeights::bf16) {
    if (slots > kMostOfFew * args.drawn.experts) {
      return launch.template operator()<2>();
    }
  }
  return launch.template operator()<1>();
}

}  // namespace weft::hopper
