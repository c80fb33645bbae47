// moe for a chunk's rows on sm_90a. Where all slots are few, hopper_few.cuh multiplies. Otherwise
// they are sorted by expert, a block for each. Where experts have many, hopper_grouped.cuh
// multiplies; where they have fewer, or weights are codes, a block has some columns of one expert's
// product, for tile after tile of the rows that drew it, which it gathers. Blocks of experts that
// nobody drew leave at once. The second products lie by slot until each row sums its own.
#include <algorithm>
#include <cmath>

#include "arch/hopper/copy.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/resident.cuh"
#include "arch/hopper/warp.cuh"
#include "base/divide.h"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/linear/forms/mxfp4/hopper_prefill.cuh"
#include "ops/moe/hopper_few.cuh"
#include "ops/moe/hopper_grouped.cuh"
#include "ops/moe/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kRouteWarps = 4;
constexpr int kSortThreads = 256;
constexpr int kSumThreads = 256;
/// Few slots of an expert meet so long rows of weights by the ring of hopper_grouped.cuh, which
/// runs on from tile to tile; shorter ones by many small blocks, which are dealt more evenly.
constexpr int64_t kLongK = 4096;
constexpr int64_t kMostMxK = 32768;  ///< whose scales fit beside the stages

// --- the draw ---

/// Larger for what is chosen before: NaN before all numbers, of equal logits the lower expert. No
/// key is 0.
__device__ uint64_t draw_key(float logit, int expert) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // one zero
  const uint32_t ordered = isnan(logit) ? ~0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(expert);
}
__device__ uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x = max(x, __shfl_xor_sync(~0u, x, lanes));
  }
  return x;
}

/// What an expert is chosen by.
__device__ float choice_of(const RouteArgs& args, float logit, int expert) {
  return args.correction.data != nullptr ? 1 / (1 + expf(-logit)) + load_x1(args.correction, expert)
                                         : logit;
}
/// By a warp, a lane a group: a bit for each that is kept.
__device__ uint32_t kept_groups(const RouteArgs& args, const float* logits, int lane) {
  const auto groups = static_cast<int>(args.groups);
  if (args.kept_groups >= groups) {
    return ~0u;
  }
  const int each = static_cast<int>(args.experts) / groups;
  uint64_t own = 0;  // the group's key
  if (lane < groups) {
    uint64_t best[2] = {};
    for (int e = lane * each; e < (lane + 1) * each; ++e) {
      const uint64_t key = draw_key(choice_of(args, logits[e], e), e);
      best[1] = max(best[1], min(best[0], key));
      best[0] = max(best[0], key);
    }
    const auto value = [&](uint64_t key) {
      const auto e = static_cast<int>(~static_cast<uint32_t>(key));
      return choice_of(args, logits[e], e);
    };
    const bool two = args.correction.data != nullptr && each > 1;
    own = draw_key(value(best[0]) + (two ? value(best[1]) : 0.0f), lane);
  }
  uint64_t least = ~uint64_t{0};
  for (int i = 0; i < args.kept_groups; ++i) {
    least = warp_max(own < least || i == 0 ? own : 0);
  }
  return __ballot_sync(~0u, own >= least);
}

/// What a warp knows of an expert while its row draws: the upper half of its key (draw_key()), or
/// one of these, which no key has.
constexpr uint32_t kNotOffered = 0;
constexpr uint32_t kTaken = 1;

/// A row's experts as a warp's lanes have them, expert e by lane e % 32. kEach: how many a lane has
/// at most, which are in registers then; 0: any number, whose keys are in shared memory.
template <int kEach>
struct LaneExperts {
  uint32_t keys[kEach];
  float logits[kEach];

  /// f(e, key, logit) by all lanes; those beyond the last expert are not offered, their logits
  /// -infinity.
  template <class F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      f(i * 32 + static_cast<int>(threadIdx.x) % 32, keys[i], logits[i]);
    }
  }
  __device__ void take(int expert) {
    each([&](int e, uint32_t& key, float /*logit*/) { key = e == expert ? kTaken : key; });
  }
};
template <>
struct LaneExperts<0> {
  uint32_t* keys;  ///< of all experts
  const float* logits;
  int experts;

  template <class F>
  __device__ void each(const F& f) {
#pragma unroll 4
    for (int first = 0; first < experts; first += 32) {
      const int e = first + static_cast<int>(threadIdx.x) % 32;
      uint32_t key = e < experts ? keys[e] : kNotOffered;
      f(e, key, e < experts ? logits[e] : -INFINITY);
    }
  }
  __device__ void take(int expert) {
    if (expert % 32 == static_cast<int>(threadIdx.x) % 32) {
      keys[expert] = kTaken;
    }
  }
};

/// A row's experts before any is drawn. kPlain: the router has no groups and no correction.
template <int kEach, bool kPlain>
__device__ LaneExperts<kEach> experts_of(const RouteArgs& args, const float* logits,
                                         uint32_t* keys) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto experts = static_cast<int>(args.experts);
  const uint32_t kept = kPlain ? ~0u : kept_groups(args, logits, lane);
  const int each = kept == ~0u ? experts : experts / static_cast<int>(args.groups);
  const auto key_of = [&](float logit, int e) {
    if (!kPlain && (kept >> (e / each) & 1) == 0) {
      return kNotOffered;
    }
    const float choice = kPlain ? logit : choice_of(args, logit, e);
    return static_cast<uint32_t>(draw_key(choice, e) >> 32);
  };
  if constexpr (kEach > 0) {
    LaneExperts<kEach> own;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      own.logits[i] = i * 32 + lane < experts ? logits[i * 32 + lane] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = i * 32 + lane;
      own.keys[i] = e < experts ? key_of(own.logits[i], e) : kNotOffered;
    }
    return own;
  } else {
#pragma unroll 4
    for (int e = lane; e < experts; e += 32) {
      keys[e] = key_of(logits[e], e);
    }
    return {keys, logits, experts};
  }
}

/// A warp a row. Dynamic shared memory where they are not in registers: u32 [kRouteWarps][experts].
template <int kEach, bool kPlain>
__global__ void __launch_bounds__(kRouteWarps * 32)
    route_rows(const __grid_constant__ RouteArgs args, int64_t rows) {
  begin_in_turn();
  extern __shared__ uint32_t all_keys[];
  const auto warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = int64_t{blockIdx.x} * kRouteWarps + warp;
  if (row >= rows) {
    return;
  }
  const float* logits = static_cast<const float*>(args.logits.data) + row * args.logits.stride;
  const auto experts = static_cast<int>(args.experts);
  const auto chosen = static_cast<int>(args.drawn.chosen);
  LaneExperts<kEach> own = experts_of<kEach, kPlain>(args, logits, all_keys + warp * experts);
  // The best that is left, again and again: of equal ones the first.
  float largest = 0;
  for (int s = 0; s < chosen; ++s) {
    uint32_t best = kTaken;
    int first = experts;
    own.each([&](int e, uint32_t key, float /*logit*/) {
      first = key > best ? e : first;
      best = max(best, key);
    });
    const uint32_t most = __reduce_max_sync(~0u, best);
    const int expert = __reduce_min_sync(~0u, best == most ? first : experts);
    own.take(expert);
    if (s == 0) {
      largest = logits[expert];
    }
  }
  const auto score = [&](float logit) {
    const float x = expf(args.sigmoid ? -logit : logit - largest);
    return args.sigmoid ? 1 / (1 + x) : x;
  };
  float sum = 0;
  own.each([&](int /*e*/, uint32_t key, float logit) {
    sum += !args.renormalise || key == kTaken ? score(logit) : 0.0f;
  });
  sum = args.sigmoid && !args.renormalise ? 1.0f : warp_sum(sum);
  int64_t slot = row * args.drawn.stride;
  own.each([&](int e, uint32_t key, float logit) {
    const uint32_t all = __ballot_sync(~0u, key == kTaken);
    if (key == kTaken) {
      const int64_t at = slot + __popc(all & ((1u << lane) - 1));
      args.drawn.ids[at] = e;
      args.drawn.weights[at] = score(logit) / sum * args.scale;
    }
    slot += __popc(all);
  });
}

// --- the order ---

/// A block an expert.
__global__ void __launch_bounds__(kSortThreads)
    sort_slots(const __grid_constant__ PrefillDraw drawn, int slots) {
  wait_for_earlier();
  let_next_begin();  // not sooner: see multiply_few()
  __shared__ int warp_counts[2][kSortThreads / 32];
  const int expert = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int kAtOnce = 4;
  const int each = ceil_div(ceil_div(slots, kSortThreads), kAtOnce) * kAtOnce;
  const int first = min(slots, thread * each);
  const int last = min(slots, first + each);
  /// f(i, id) for this thread's slots.
  const auto each_slot = [&](const auto& f) {
#pragma unroll 4
    for (int i = first; i < last; i += kAtOnce) {
      if (i + kAtOnce <= last) {
        const int4 ids = *reinterpret_cast<const int4*>(drawn.ids + i);
        f(i, ids.x);
        f(i + 1, ids.y);
        f(i + 2, ids.z);
        f(i + 3, ids.w);
        continue;
      }
      for (int rest = i; rest < last; ++rest) {
        f(rest, drawn.ids[rest]);
      }
    }
  };
  int lower = 0;
  int own = 0;
  each_slot([&](int /*i*/, int id) {
    lower += id < expert ? 1 : 0;
    own += id == expert ? 1 : 0;
  });
  const int before = sum_up_to(thread % 32, own);  // up to this thread's
  const int lower_of_warp = __reduce_add_sync(~0u, lower);
  if (thread % 32 == 31) {
    warp_counts[0][thread / 32] = lower_of_warp;
    warp_counts[1][thread / 32] = before;
  }
  __syncthreads();
  int begin = 0;
  int in_all = 0;
  int at = before - own;
  for (int w = 0; w < kSortThreads / 32; ++w) {
    begin += warp_counts[0][w];
    in_all += warp_counts[1][w];
    at += w < thread / 32 ? warp_counts[1][w] : 0;
  }
  if (thread == 0) {
    drawn.order[expert] = begin;
    if (expert + 1 == drawn.experts) {
      drawn.order[expert + 1] = begin + in_all;
    }
  }
  int32_t* to = drawn.order + drawn.experts + 1 + begin + at;
  each_slot([&](int i, int id) {
    if (id == expert) {
      *to++ = i;
    }
  });
}

// --- products ---

/// A block of 4 warps: kRows slots at a time and kColumns columns of weights, of gate and up one
/// half each. Codes are in the stages; the scales of MXFP4 are behind these, of all k.
template <int kRowCount, bool kIsGated, SlotWeights kWeights>
struct SlotsTile {
  static constexpr bool kGated = kIsGated;
  static constexpr bool kMx = kWeights == SlotWeights::mxfp4;
  static constexpr bool kFp8 = kWeights == SlotWeights::e4m3;
  static constexpr bool kCodes = kMx || kFp8;
  static constexpr int kRows = kRowCount;
  static constexpr int kColumns = kRows == 16 ? 64 : 128;
  static constexpr int kOutColumns = kColumns / (kGated ? 2 : 1);
  static constexpr int kStages = kCodes && kRows == 16 ? 8 : 4;  ///< enough bytes on their way
  static constexpr int kDepth = 64;  ///< elements of k of a stage: a row is 128 bytes
  static constexpr int kPieces = kDepth / 8;
  static constexpr int kThreads = 128;
  static constexpr int kWarpRows = kRows == 16 ? 1 : 2;  ///< warps along the rows
  static constexpr int kWarpColumns = 4 / kWarpRows;
  static constexpr int kRowTiles = kRows / 16 / kWarpRows;  ///< of 16, of a warp
  static constexpr int kColumnTiles = kColumns / 8 / kWarpColumns;
  static constexpr int kBlocks = kDepth / kMxBlock;
  static constexpr int kCodeBytes = kFp8 ? kDepth : kDepth / 2;  ///< of a row
  static constexpr int kStageBytes =
      kRows * kRowBytes + kColumns * (kCodes ? kCodeBytes : kRowBytes);

  static int bytes(int64_t k) {
    return kStages * kStageBytes + (kMx ? kColumns * static_cast<int>(k / kMxBlock) : 0);
  }
  /// Where a row's 16 bytes are, so that those which are read at once lie in banks apart: the same
  /// of eight rows, or, where weights are codes, half a row's of two.
  __device__ static int at(int row, int piece) {
    return row * kRowBytes + ((piece ^ (kCodes ? row % 2 * (kPieces / 2) : row % kPieces)) * 16);
  }
  /// The codes of a row's block likewise: of eight rows.
  __device__ static int codes_at(int row, int block) {
    constexpr int kBlockBytes = kCodeBytes / kBlocks;
    return row * kCodeBytes + ((block ^ row / (128 / kCodeBytes) % kBlocks) * kBlockBytes);
  }
};

/// Beside the threads: the scales of the block's columns of an expert, those of gate and up one
/// behind the other. What lies behind those of the last column may come with them.
template <class T>
__device__ void copy_scales(const SlotsProduct& args, int expert, int first_column, char* to) {
  const int blocks = args.k / kMxBlock;
#pragma unroll
  for (int which = 0; which < (T::kGated ? 2 : 1); ++which) {
    const int bytes = min(T::kOutColumns, args.n - first_column) * blocks;
    const uint8_t* const from = scales_of(args.w[which], expert) + first_column * blocks;
    for (int i = static_cast<int>(threadIdx.x) * 16; i < bytes; i += T::kThreads * 16) {
      copy_async_16(to + which * T::kOutColumns * blocks + i, from + i, true);
    }
  }
}

/// A stage of codes in e4m3fn, eight at a time: k may be any multiple of that.
template <class T>
__device__ void copy_codes(const SlotsProduct& args, int expert, int first_column, int step,
                           char* to) {
  constexpr int kRowPieces = T::kCodeBytes / 8;
  constexpr int kRowStep = T::kThreads / kRowPieces;
  constexpr int kBlockPieces = kRowPieces / T::kBlocks;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % kRowPieces;
  const int at = step * T::kDepth + piece * 8;
#pragma unroll
  for (int i = 0; i < T::kColumns / kRowStep; ++i) {
    const int row = thread / kRowPieces + i * kRowStep;
    const int column = first_column + row % T::kOutColumns;
    const bool there = at < args.k && column < args.n;
    const ConstMatrix w = of_expert(args.w[row / T::kOutColumns], expert);
    copy_async_8(to + T::codes_at(row, piece / kBlockPieces) + piece % kBlockPieces * 8,
                 static_cast<const char*>(w.data) + (there ? column * w.stride + at : 0), there);
  }
}

/// A stage of weights in bf16, or in MXFP4.
template <class T>
__device__ void copy_weights(const SlotsProduct& args, int expert, int first_column, int step,
                             char* to) {
  constexpr int kPieceElements = T::kMx ? kMxBlock : 8;  // in 16 bytes
  constexpr int kRowPieces = T::kDepth / kPieceElements;
  constexpr int kRowStep = T::kThreads / kRowPieces;
  const int thread = static_cast<int>(threadIdx.x);
  const int piece = thread % kRowPieces;
  const int at = step * T::kDepth + piece * kPieceElements;
#pragma unroll
  for (int i = 0; i < T::kColumns / kRowStep; ++i) {
    const int row = thread / kRowPieces + i * kRowStep;
    const int which = row / T::kOutColumns;
    const int column = first_column + row % T::kOutColumns;
    const bool there = at < args.k && column < args.n;
    const ConstMatrix w = of_expert(args.w[which], expert);
    const int64_t from = there ? column * w.stride + at : 0;
    copy_async_16(to + (T::kMx ? T::codes_at(row, piece) : T::at(row, piece)),
                  static_cast<const char*>(w.data) + (T::kMx ? from / 2 : from * 2), there);
  }
}

/// Which rows of a stage a warp has.
template <class T>
struct WarpPlace {
  int row, column;  ///< of the warp among those of a block

  __device__ WarpPlace()
      : row(static_cast<int>(threadIdx.x) / 32 / T::kWarpColumns),
        column(static_cast<int>(threadIdx.x) / 32 % T::kWarpColumns) {}
  /// The first of the i-th tile of 16 rows.
  __device__ int slot_row(int i) const { return (row * T::kRowTiles + i) * 16; }
  /// Of weights, the first of the j-th tile of 8 columns: of gate, then of up.
  __device__ int weight_row(int j) const {
    constexpr int kHalf = T::kColumnTiles / 2;
    return T::kGated ? j / kHalf * (T::kColumns / 2) + (column * kHalf + j % kHalf) * 8
                     : (column * T::kColumnTiles + j) * 8;
  }
};

template <class T>
using SlotsSums = float[T::kRowTiles][T::kColumnTiles][4];

/// A stage's product with weights in bf16.
template <class T>
__device__ void multiply_bf16(const char* stage, const WarpPlace<T>& place, SlotsSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t rows = smem_address(stage);
  const uint32_t weights = rows + T::kRows * kRowBytes;
#pragma unroll
  for (int k = 0; k < T::kPieces; k += 2) {
    uint4 a[T::kRowTiles];
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      a[i] = load_matrices_x4(rows + T::at(place.slot_row(i) + lane % 16, k + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; j += 2) {
      const int row = place.weight_row(lane / 16 == 0 ? j : j + 1) + lane % 8;
      const uint4 b = load_matrices_x4(weights + T::at(row, k + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < T::kRowTiles; ++i) {
        mma_bf16(sums[i][j], a[i], b.x, b.y);
        mma_bf16(sums[i][j + 1], a[i], b.z, b.w);
      }
    }
  }
}

/// A stage's product with weights in MXFP4, of whose blocks there are `blocks` in a row. A lane has
/// elements 8 (lane % 4) .. + 7 of a block of its rows and columns, in the order of mx_pairs(),
/// which is as good for a sum as theirs.
template <class T>
__device__ void multiply_mx(const char* stage, const char* scales, int step, int blocks,
                            const WarpPlace<T>& place, SlotsSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const char* const weights = stage + T::kRows * kRowBytes;
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    const int block = step * T::kBlocks + b;
    if (block >= blocks) {
      break;
    }
    uint4 a[T::kRowTiles][2];
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      const auto pairs = [&](int row) {
        return pairs_apart(
            *reinterpret_cast<const uint4*>(stage + T::at(row, b * (kMxBlock / 8) + lane % 4)));
      };
      const uint4 upper = pairs(place.slot_row(i) + lane / 4);
      const uint4 lower = pairs(place.slot_row(i) + lane / 4 + 8);
      a[i][0] = {upper.x, lower.x, upper.y, lower.y};
      a[i][1] = {upper.z, lower.z, upper.w, lower.w};
    }
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; ++j) {
      const int row = place.weight_row(j) + lane / 4;
      const auto codes =
          *reinterpret_cast<const uint32_t*>(weights + T::codes_at(row, b) + lane % 4 * 4);
      uint32_t pairs[4];
      mx_pairs(codes, mx_scale(static_cast<uint8_t>(scales[row * blocks + block])), pairs);
#pragma unroll
      for (int i = 0; i < T::kRowTiles; ++i) {
        mma_bf16(sums[i][j], a[i][0], pairs[0], pairs[1]);
        mma_bf16(sums[i][j], a[i][1], pairs[2], pairs[3]);
      }
    }
  }
}

/// A stage's product with weights in e4m3fn, which is in one block of scales. A lane has elements 8
/// (lane % 4) .. + 7 of each 32 of its rows and columns, which is as good an order for a sum as
/// another.
template <class T>
__device__ void multiply_codes(const SlotsProduct& args, int expert, int first_column,
                               const char* stage, int step, const WarpPlace<T>& place,
                               SlotsSums<T>& sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const char* const weights = stage + T::kRows * kRowBytes;
  SlotsSums<T> own = {};
#pragma unroll
  for (int b = 0; b < T::kBlocks; ++b) {
    uint4 a[T::kRowTiles][2];
#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
      const auto row = [&](int r) {
        return *reinterpret_cast<const uint4*>(stage + T::at(r, b * (kMxBlock / 8) + lane % 4));
      };
      const uint4 upper = row(place.slot_row(i) + lane / 4);
      const uint4 lower = row(place.slot_row(i) + lane / 4 + 8);
      a[i][0] = {upper.x, lower.x, upper.y, lower.y};
      a[i][1] = {upper.z, lower.z, upper.w, lower.w};
    }
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; ++j) {
      const auto codes = *reinterpret_cast<const uint2*>(
          weights + T::codes_at(place.weight_row(j) + lane / 4, b) + lane % 4 * 8);
      const uint32_t pairs[4] = {e4m3_pair(codes.x), e4m3_pair(codes.x >> 16), e4m3_pair(codes.y),
                                 e4m3_pair(codes.y >> 16)};
#pragma unroll
      for (int i = 0; i < T::kRowTiles; ++i) {
        mma_bf16(own[i][j], a[i][0], pairs[0], pairs[1]);
        mma_bf16(own[i][j], a[i][1], pairs[2], pairs[3]);
      }
    }
  }
  const auto scale_of = [&](int which) {
    return *block_scale(args.w[which], expert, args.k, first_column, step * T::kDepth);
  };
  const float scales[2] = {scale_of(0), T::kGated ? scale_of(1) : 0};
#pragma unroll
  for (int i = 0; i < T::kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < T::kColumnTiles; ++j) {
      const float scale = T::kGated && j >= T::kColumnTiles / 2 ? scales[1] : scales[0];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        sums[i][j][c] = fmaf(scale, own[i][j][c], sums[i][j][c]);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads)
    multiply_slots(const __grid_constant__ SlotsProduct args) {
  begin_in_turn();
  extern __shared__ __align__(1024) char memory[];
  const int expert = static_cast<int>(blockIdx.y);
  const OwnSlots own = slots_of(args.drawn, expert);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const WarpPlace<T> place;
  const int first_column = static_cast<int>(blockIdx.x) * T::kOutColumns;
  const int steps = ceil_div(args.k, T::kDepth);
  char* const scales = memory + T::kStages * T::kStageBytes;
  if (T::kMx && static_cast<int>(blockIdx.z) * T::kRows < own.count) {
    copy_scales<T>(args, expert, first_column, scales);  // with the first stage
  }
  for (int tile = static_cast<int>(blockIdx.z) * T::kRows; tile < own.count;
       tile += static_cast<int>(gridDim.z) * T::kRows) {
    // A thread copies pieces of the same column of all its rows.
    constexpr int kRowStep = T::kThreads / T::kPieces;
    const int piece = thread % T::kPieces;
    const auto copy = [&](int step) {
      if (step < steps) {
        char* const stage = memory + step % T::kStages * T::kStageBytes;
        const int at = step * T::kDepth + piece * 8;
        const bool in_k = at < args.k;
#pragma unroll
        for (int i = 0; i < ceil_div(T::kRows, kRowStep); ++i) {
          const int row = thread / T::kPieces + i * kRowStep;
          const bool there = in_k && tile + row < own.count;
          const int64_t from = there ? own.slots[tile + row] / args.per_row : 0;
          copy_async_16(
              stage + T::at(row, piece),
              static_cast<const uint16_t*>(args.a.data) + from * args.a.stride + (there ? at : 0),
              there);
        }
        char* const weights = stage + T::kRows * kRowBytes;
        if constexpr (T::kFp8) {
          copy_codes<T>(args, expert, first_column, step, weights);
        } else {
          copy_weights<T>(args, expert, first_column, step, weights);
        }
      }
      commit_copies();
    };
    SlotsSums<T> sums = {};
    __syncthreads();  // the tile before has been read
    for (int step = 0; step < T::kStages - 1; ++step) {
      copy(step);
    }
    for (int step = 0; step < steps; ++step) {
      await_copies<T::kStages - 2>();
      __syncthreads();
      copy(step + T::kStages - 1);
      const char* const stage = memory + step % T::kStages * T::kStageBytes;
      if constexpr (T::kMx) {
        multiply_mx(stage, scales, step, args.k / kMxBlock, place, sums);
      } else if constexpr (T::kFp8) {
        multiply_codes<T>(args, expert, first_column, stage, step, place, sums);
      } else {
        multiply_bf16(stage, place, sums);
      }
    }
    await_copies<0>();

#pragma unroll
    for (int i = 0; i < T::kRowTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile + place.slot_row(i) + half * 8 + lane / 4;
        if (row >= own.count) {
          continue;
        }
        const int64_t to = own.slots[row] * args.out.stride;
        constexpr int kTiles = T::kColumnTiles / (T::kGated ? 2 : 1);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const int column = first_column + place.weight_row(j) + lane % 4 * 2;
          if (column >= args.n) {
            continue;
          }
          store_columns<T::kGated>(args, expert, to, column, sums[i][j] + half * 2,
                                   sums[i][T::kGated ? j + kTiles : j] + half * 2);
        }
      }
    }
  }
}

/// The same in f32, F32Tile::kColumns columns a block.
template <class W, bool kGated>
__global__ void __launch_bounds__(F32Tile::kThreads)
    multiply_slots_f32(const __grid_constant__ SlotsProduct args) {
  constexpr int kThreadColumns = F32Tile::kThreadColumns;
  constexpr int kGroups = kGated ? 2 : 1;
  const int expert = static_cast<int>(blockIdx.y);
  const OwnSlots own = slots_of(args.drawn, expert);
  const int64_t column = int64_t{blockIdx.x} * F32Tile::kColumns;
  F32Group groups[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    groups[g] = {of_expert(args.w[g], expert), column, scales_of(args.w[g], expert)};
    if (args.w[g].block_scales != nullptr) {
      groups[g].scales = reinterpret_cast<const uint8_t*>(args.w[g].block_scales) +
                         expert * args.w[g].block_scales_pitch;
    }
  }
  for (int64_t tile = int64_t{blockIdx.z} * F32Tile::kRows; tile < own.count;
       tile += int64_t{gridDim.z} * F32Tile::kRows) {
    float sums[F32Tile::kThreadRows][kGroups * kThreadColumns];
    __syncthreads();  // the tile before has been read
    multiply_f32<W>(args.a, tile, own.count, groups, args.n, args.k, sums,
                    [&](int64_t row) { return int64_t{own.slots[row] / args.per_row}; });
    each_f32<kThreadColumns>(
        tile, own.count, column, args.n, [&](int i, int j, int64_t r, int64_t c) {
          float x = sums[i][j] + bias_of(args, 0, expert, c);
          if constexpr (kGated) {
            const float up = sums[i][j + kThreadColumns] + bias_of(args, 1, expert, c);
            x = gate_with<false>(args.activation, args.limit, x, up);
          }
          static_cast<float*>(args.out.data)[own.slots[r] * args.out.stride + c] = x;
        });
  }
}

/// A thread four columns of a row.
__global__ void __launch_bounds__(kSumThreads)
    sum_slots(const __grid_constant__ PrefillExpertsDown args) {
  begin_in_turn();
  constexpr int kAtOnce = 8;  // slots whose products are asked for together
  const int64_t row = blockIdx.x;
  const int64_t c = 4 * (int64_t{blockIdx.y} * kSumThreads + threadIdx.x);
  if (c >= args.n) {
    return;
  }
  const int64_t first = row * args.drawn.chosen;
  const auto chosen = static_cast<int>(args.drawn.chosen);
  const int64_t to = row * args.out.stride + c;
  const float* const products = args.products + first * args.n + c;
  float4 sum = args.accumulate ? read_x4(static_cast<const float*>(args.out.data) + to) : float4{};
  for (int done = 0; done < chosen; done += kAtOnce) {
    float4 x[kAtOnce] = {};
    float weights[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i < chosen) {
        x[i] = read_x4(products + (done + i) * args.n);
        weights[i] = args.drawn.weights[first + done + i];
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i < chosen) {
        const float weight = args.alpha * weights[i];
        sum = {fmaf(weight, x[i].x, sum.x), fmaf(weight, x[i].y, sum.y),
               fmaf(weight, x[i].z, sum.z), fmaf(weight, x[i].w, sum.w)};
      }
    }
  }
  store_x4(args.out.data, args.out.dtype, to, sum);
}

// --- launches ---

/// Along z: enough for rows that are drawn unevenly, and not a block for each tile that an expert
/// which all rows drew would have.
int row_blocks(const PrefillDraw& drawn, int64_t rows, int tile) {
  const int64_t mean = ceil_div(rows * drawn.chosen, drawn.experts);
  return static_cast<int>(
      std::min(ceil_div(rows, int64_t{tile}), 2 * ceil_div(mean, int64_t{tile})));
}

template <int kRows, bool kGated, SlotWeights kWeights>
Status launch_bf16(const SlotsProduct& args, int64_t rows, Stream stream) {
  using Tile = SlotsTile<kRows, kGated, kWeights>;
  return launch_kernel(multiply_slots<Tile>,
                       {.blocks = ceil_div(args.n, Tile::kOutColumns),
                        .blocks_y = static_cast<int>(args.drawn.experts),
                        .blocks_z = row_blocks(args.drawn, rows, kRows),
                        .threads = Tile::kThreads,
                        .shared_bytes = Tile::bytes(args.k),
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args);
}

template <bool kGated>
Status launch_product(const SlotsProduct& args, bool sorted, int64_t rows, Stream stream) {
  const auto native = static_cast<cudaStream_t>(stream.native);
  const auto experts = static_cast<int>(args.drawn.experts);
  const auto slots = static_cast<int>(rows * args.drawn.chosen);
  const bool overlaps = args.a.dtype == DType::bf16;
  const bool mx = args.w[0].scales > 0;
  const bool fp8 = is_fp8(args.w[0].first.dtype);
  const SlotWeights weights = mx ? SlotWeights::mxfp4 : fp8 ? SlotWeights::e4m3 : SlotWeights::bf16;
  // Those of few slots add along k in an order that depends on how many there are.
  if (overlaps && !args.drawn.alone && few_slots(args, weights, slots)) {
    return mx    ? launch_few<SlotWeights::mxfp4, kGated>(args, slots, sorted, stream)
           : fp8 ? launch_few<SlotWeights::e4m3, kGated>(args, slots, sorted, stream)
                 : launch_few<SlotWeights::bf16, kGated>(args, slots, sorted, stream);
  }
  if (!sorted) {
    WEFT_TRY(prefill_sort(args.drawn, rows, overlaps, stream));
  }
  if (!overlaps) {
    const auto multiply = [&](auto w) {
      return launch_kernel(multiply_slots_f32<decltype(w), kGated>,
                           {.blocks = ceil_div(args.n, F32Tile::kColumns),
                            .blocks_y = experts,
                            .blocks_z = row_blocks(args.drawn, rows, F32Tile::kRows),
                            .threads = F32Tile::kThreads,
                            .stream = native},
                           args);
    };
    return mx    ? multiply(Mxfp4{})
           : fp8 ? multiply(e4m3fn{})
                 : with_weights(args.w[0].first.dtype, multiply);
  }
  // Tiles of few rows where an expert has few.
  const bool few = slots <= 16 * experts;
  const auto launch = [&]<SlotWeights kWeights>() {
    return few ? launch_bf16<16, kGated, kWeights>(args, rows, stream)
               : launch_bf16<64, kGated, kWeights>(args, rows, stream);
  };
  if (mx) {
    return launch.template operator()<SlotWeights::mxfp4>();
  }
  if (fp8) {
    return launch.template operator()<SlotWeights::e4m3>();
  }
  if (few && args.k >= kLongK) {
    return launch_grouped<64, kGated, 128>(args, stream);
  }
  return few                     ? launch_bf16<16, kGated, SlotWeights::bf16>(args, rows, stream)
         : slots <= 64 * experts ? launch_grouped<64, kGated>(args, stream)
                                 : launch_grouped<192, kGated>(args, stream);
}

std::string_view refuse(const ConstMatrix& a, const ExpertMatrices& w, int64_t n, int64_t k) {
  const bool codes = w.first.dtype == DType::e4m3fn && w.block_scales != nullptr;
  if (is_fp8(w.first.dtype) && !codes) {
    return "weights in eight bits must be e4m3fn with scales of blocks";
  }
  if (a.dtype == DType::bf16 ? w.first.dtype != DType::bf16 && !codes : a.dtype != DType::f32) {
    return "rows must be f32, or weights bf16 or codes too";
  }
  if (n % 8 != 0 || k % 8 != 0 || a.stride % 8 != 0 || w.first.stride % 8 != 0 ||
      w.pitch % 16 != 0) {
    return "n, k and strides must be multiples of 8";
  }
  if (w.scales > 0 && (k % kMxBlock != 0 || k > kMostMxK || w.scales % 16 != 0)) {
    return "k of weights in MXFP4 must be a multiple of 32 up to 32768";
  }
  return {};
}

}  // namespace

std::string_view refuse_prefill_experts(const PrefillExpertsUp& args) {
  if (args.out.dtype != args.a.dtype) {
    return "the result must be as the rows are";
  }
  return args.out.stride % 2 != 0 ? "n, k and strides must be multiples of 8"
                                  : refuse(args.a, args.gate, args.n, args.k);
}
std::string_view refuse_prefill_experts(const PrefillExpertsDown& args) {
  const std::string_view why = refuse_result(args);
  return why.empty() ? refuse(args.a, args.weight, args.n, args.k) : why;
}

std::string_view refuse_prefill_route(const RouteArgs& args) {
  return args.groups > kMostRouteGroups ? "experts are of 32 groups at most" : "";
}

Status prefill_route(const RouteArgs& args, int64_t rows, Stream stream) {
  const bool plain = args.kept_groups >= args.groups && args.correction.data == nullptr;
  const bool registers = args.experts <= (plain ? 128 : 256);
  return launch_kernel(
      !registers ? route_rows<0, false>
      : plain    ? route_rows<4, true>
                 : route_rows<8, false>,
      {.blocks = static_cast<int>(ceil_div(rows, int64_t{kRouteWarps})),
       .threads = kRouteWarps * 32,
       .shared_bytes = registers ? 0 : kRouteWarps * static_cast<int>(args.experts) * 4,
       .overlaps = true,
       .stream = static_cast<cudaStream_t>(stream.native)},
      args, rows);
}

Status prefill_sort(const PrefillDraw& drawn, int64_t rows, bool overlaps, Stream stream) {
  return launch_kernel(sort_slots,
                       {.blocks = static_cast<int>(drawn.experts),
                        .threads = kSortThreads,
                        .overlaps = overlaps,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       drawn, static_cast<int>(rows * drawn.chosen));
}

Status prefill_experts_up(const PrefillExpertsUp& args, int64_t rows, Stream stream) {
  return launch_product<true>({.a = args.a,
                               .drawn = args.drawn,
                               .per_row = static_cast<int32_t>(args.drawn.chosen),
                               .w = {args.gate, args.up},
                               .bias = {args.gate_bias, args.up_bias},
                               .n = static_cast<int32_t>(args.n),
                               .k = static_cast<int32_t>(args.k),
                               .activation = args.activation,
                               .limit = args.limit,
                               .out = args.out},
                              false, rows, stream);
}

Status prefill_experts_down(const PrefillExpertsDown& args, int64_t rows, Stream stream) {
  WEFT_TRY(launch_product<false>({.a = args.a,
                                  .drawn = args.drawn,
                                  .w = {args.weight},
                                  .bias = {args.bias},
                                  .n = static_cast<int32_t>(args.n),
                                  .k = static_cast<int32_t>(args.k),
                                  .out = {args.products, DType::f32, args.n}},
                                 args.sorted, rows, stream));
  return launch_kernel(sum_slots,
                       {.blocks = static_cast<int>(rows),
                        .blocks_y = static_cast<int>(ceil_div(args.n, int64_t{4} * kSumThreads)),
                        .threads = kSumThreads,
                        .overlaps = args.a.dtype == DType::bf16,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args);
}

}  // namespace weft::hopper
