// attention_decode on sm_90a, bound by reading the cache. The query heads of a KV head, times the
// query tokens, are the rows of mma.m16n8k16, so that keys and values are read once for all. A ring
// of stages of 32 keys and values, which the copy engine fills, passes eight warps, each of which
// takes whole stages with a softmax and sums of its own: none waits for another before the end of a
// segment, where the warps' sums meet. Products are bf16, sums f32.
//
// Few jobs (kCluster): each has a cluster of blocks, which take its stages in turn; their sums meet
// in one another's shared memory, a few rows in each, and nothing goes through device memory. Which
// stages a block takes first no length says, so that they are on their way before it is known.
#include <algorithm>
#include <cfloat>
#include <climits>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/clusters.h"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/attention/hopper_sinks.cuh"
#include "ops/attention_decode/hopper_plan.h"
#include "ops/check_operands.h"
#include "ops/hopper_activation.cuh"
#include "ops/hopper_key_shares.cuh"

namespace weft::hopper {
namespace {

constexpr int kKeys = kDecodeKeys;
constexpr int kRows = kDecodeRows;
constexpr int kWarps = kDecodeWarps;
constexpr int kTeamThreads = 32 * kWarps;
constexpr int kThreads = kTeamThreads + 128;  ///< and four warps, one of which feeds
constexpr int kFeederRegisters = 24;
constexpr int kRegisters = 240;
constexpr int kTeam = 1;  ///< named barrier
constexpr int kTileColumns = kRowBytes / 2;
constexpr float kLn2 = 0.693147180559945309f;

struct Params {
  AttentionDecodeArgs args;
  int group = 1;  ///< query heads of a KV head
  int row_tiles = 0;
  Divisor by_group;
  Divisor by_row_tiles;
  Divisor by_kv_heads;
  Divisor by_jobs_each;  ///< of a sequence
  int units = 0;
  float* parts = nullptr;        ///< [unit][2]: of jobs that units share
  uint32_t* counters = nullptr;  ///< [job]

  /// `alone`: units have whole jobs.
  __device__ KeyJobs jobs(bool alone) const {
    const int each = static_cast<int>(args.kv_heads) * row_tiles;
    return {.lengths = args.lengths,
            .count = static_cast<int>(args.batch) * each,
            .each = each,
            .by_each = by_jobs_each,
            .reach = args.window > 0 ? static_cast<int>(args.window + args.tokens) - 1 : 0,
            .alone = alone};
  }
};

/// What a job is.
struct Job {
  int sequence;
  int kv_head;
  int first;  ///< of its rows
  int rows;

  __device__ Job(const Params& p, int index) {
    const int plane = p.by_row_tiles.divide(index);
    sequence = p.by_kv_heads.divide(plane);
    kv_head = plane - sequence * static_cast<int>(p.args.kv_heads);
    first = (index - plane * p.row_tiles) * kRows;
    rows = min(kRows, p.group * static_cast<int>(p.args.tokens) - first);
  }
  __device__ int token(const Params& p, int row) const { return p.by_group.divide(first + row); }
  __device__ int head(const Params& p, int row) const {
    return (kv_head - token(p, row)) * p.group + first + row;
  }
  /// The row of q and of out.
  __device__ int64_t line(const Params& p, int row) const {
    return sequence * p.args.tokens + token(p, row);
  }
};

/// Results of rows over some of their keys, and how far their scores were from a unified maximum.
template <int kDim>
struct Part : PartRows<kRows, kDim, 1> {
  using Base = PartRows<kRows, kDim, 1>;
  static constexpr int kFloats = Base::kFloats + kRows;
  __device__ static float& distance(float* part, int row) { return part[Base::kFloats + row]; }
};

template <int kDim, int kCluster>
struct Shared {
  static constexpr int kTileBytes = kKeys * kRowBytes;  ///< 64 columns of keys, or of values
  static constexpr int kTiles = kDim / kTileColumns;
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;
  static constexpr int kStages = decode_stages(kDim);
  static constexpr int kTakers = kStages < kWarps ? kStages : kWarps;  ///< warps that have stages
  static_assert(kStages % kTakers == 0);
  /// Columns of the warps' sums that there is room for; 8-byte accesses of a warp meet no bank
  /// twice.
  static constexpr int kSumColumns = kDim <= 128 ? kDim : kTileColumns;
  static constexpr int kPitch = kSumColumns + 8;
  static constexpr int kSumFloats = kWarps * kRows * kPitch;
  static constexpr int kSoftmaxFloats = 3 * kWarps * kRows;
  /// What each block of a cluster sends to each: sums of kOwnRows rows, and of each its highest
  /// score, sum of exponentials and distance. Two segments' can be on their way: who sends a third
  /// one's has had all of the second, which no block sends before it has added up the first.
  static constexpr int kOwnRows = (kRows + kCluster - 1) / kCluster;
  static constexpr int kMailFloats = kOwnRows * (kDim + 4);
  static constexpr int kMails = kCluster > 1 ? 2 : 0;
  static constexpr int kBytes = 1024 + kStages * kStageBytes + (kSumFloats + kSoftmaxFloats) * 4 +
                                kMails * kCluster * kMailFloats * 4 + (2 * kStages + kMails) * 8;
  static_assert(kBytes + 1024 <= 232448, "more than a block may have");

  char* base;  ///< aligned to 1024

  __device__ explicit Shared(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* keys(int slot) const { return base + slot * kStageBytes; }
  __device__ char* values(int slot) const { return keys(slot) + kTiles * kTileBytes; }
  __device__ float* sums(int warp, int row) const {
    return reinterpret_cast<float*>(base + kStages * kStageBytes) + (warp * kRows + row) * kPitch;
  }
  /// Highest score, sum of exponentials, distance: `which` of a warp's row.
  __device__ float& softmax(int which, int warp, int row) const {
    return (sums(0, 0) + kSumFloats)[(which * kWarps + warp) * kRows + row];
  }
  /// From block `rank` of the cluster, aligned to 16.
  __device__ float* mail(int segment, int rank) const {
    return sums(0, 0) + kSumFloats + kSoftmaxFloats + (segment % 2 * kCluster + rank) * kMailFloats;
  }
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(sums(0, 0) + kSumFloats + kSoftmaxFloats +
                                      kMails * kCluster * kMailFloats)[slot];
  }
  __device__ Barrier& empty(int slot) const { return full(kStages + slot); }
  __device__ Barrier& arrived(int segment) const { return full(2 * kStages + segment % 2); }

  using Cursor = RingCursor<kStages>;
};

/// How many stages of its first job a block of a cluster asks for before it knows how many there
/// are: those that the sequence has room for. Where a window or a table of pages says which keys
/// are read, none.
template <int kDim, int kCluster>
__device__ int early_stages(const Params& p, int unit, int rank) {
  const KeyJobs jobs = p.jobs(true);
  if (kCluster == 1 || unit >= jobs.count || jobs.reach > 0 || p.args.cache.tables != nullptr) {
    return 0;
  }
  const int room = static_cast<int>(p.args.cache.block_rows + kKeys - 1) / kKeys;
  return min(Shared<kDim, kCluster>::kStages, max(0, room - rank + kCluster - 1) / kCluster);
}

/// Asks for 32 keys and values from `row` of a plane of the cache. By one thread.
template <int kDim, int kCluster>
__device__ void load_stage(const Shared<kDim, kCluster>& shared, const CUtensorMap& keys,
                           const CUtensorMap& values, int slot, int row, int plane) {
  using Memory = Shared<kDim, kCluster>;
  Barrier& full = shared.full(slot);
  full.arrive_expect(Memory::kStageBytes);
#pragma unroll
  for (int c = 0; c < Memory::kTiles; ++c) {
    load_plane_tile(shared.keys(slot) + c * Memory::kTileBytes, keys, c * kTileColumns, row, plane,
                    full);
  }
#pragma unroll
  for (int c = 0; c < Memory::kTiles; ++c) {
    load_plane_tile(shared.values(slot) + c * Memory::kTileBytes, values, c * kTileColumns, row,
                    plane, full);
  }
}

/// The first `early` stages of a job.
template <int kDim, int kCluster>
__device__ void feed_early(const Shared<kDim, kCluster>& shared, const CUtensorMap& keys,
                           const CUtensorMap& values, const Params& p, int index, int rank,
                           int early) {
  const Job job(p, index);
  const int plane = job.sequence * static_cast<int>(p.args.kv_heads) + job.kv_head;
#pragma unroll 1
  for (int i = 0; i < early; ++i) {
    load_stage(shared, keys, values, i, (i * kCluster + rank) * kKeys, plane);
  }
}

/// All but the first `early` stages.
template <int kDim, int kCluster>
__device__ void feed(const Shared<kDim, kCluster>& shared, KeyShares<kKeys> shares,
                     const CUtensorMap& keys, const CUtensorMap& values, const Params& p, int rank,
                     int early) {
  using Memory = Shared<kDim, kCluster>;
  const bool chosen = elect_one();
  const KvBlocks& cache = p.args.cache;
  typename Memory::Cursor cursor;
  for (int i = 0; i < early; ++i) {
    cursor.advance();
  }
  KeySegment segment;
  for (; shares.next(segment); early = 0) {
    const Job job(p, segment.job);
    KeyPages<static_cast<int>(kKvPage)> pages(cache.tables, cache.table_stride, job.sequence,
                                              segment.length);
    for (int i = segment.begin + rank + early * kCluster; i < segment.end;
         i += kCluster, cursor.advance()) {
      const int first = i * kKeys;
      const bool some = first < segment.length;  // of no keys nothing is read but zeros
      const KeyPlace place = some ? pages.place(first) : KeyPlace{};
      shared.empty(cursor.slot).wait(cursor.parity ^ 1);
      if (chosen) {
        if (some) {
          load_stage(shared, keys, values, cursor.slot, place.row,
                     place.block * static_cast<int>(p.args.kv_heads) + job.kv_head);
        } else {
          shared.full(cursor.slot).arrive();
        }
      }
      __syncwarp();
    }
  }
}

/// A stage in shared memory, as a warp's operands.
struct RingStage {
  uint32_t keys;  ///< addresses
  uint32_t values;
  int lane;
  static constexpr int kTileBytes = kKeys * kRowBytes;

  /// 8 keys, 32 elements: two operands of 16 elements.
  __device__ uint4 key(int tile, int step) const {
    return load_matrices_x4(
        keys + step / 2 * kTileBytes +
        swizzle_128((8 * tile + lane % 8) * kRowBytes + (step % 2 * 4 + lane / 8) * 16));
  }
  /// 16 keys, 16 columns: two operands of 8 columns.
  __device__ uint4 value(int step, int pair) const {
    return load_transposed_x4(
        values + pair / 4 * kTileBytes +
        swizzle_128((16 * step + lane % 16) * kRowBytes + (pair % 4 * 2 + lane / 16) * 16));
  }
};

/// The same from the cache itself, for what is gone through again.
struct CacheStage {
  const AttentionDecodeArgs& args;
  const Job& job;
  int first;  ///< key
  int begin;  ///< keys from here
  int end;    ///< up to here are read, others are zeros
  int lane;

  __device__ const uint16_t* row(const void* data, int key) const {
    if (key < begin || key >= end) {
      return nullptr;
    }
    return static_cast<const uint16_t*>(data) +
           args.cache.place(job.sequence, key, job.kv_head, args.kv_heads, args.head_dim);
  }
  __device__ uint4 key(int tile, int step) const {
    const uint16_t* from = row(args.cache.keys, first + 8 * tile + lane / 4);
    const auto pair = [&](int i) {
      const int k = 32 * step + i + lane % 4 * 2;
      return from != nullptr && k < args.head_dim ? *reinterpret_cast<const uint32_t*>(from + k)
                                                  : 0u;
    };
    return {pair(0), pair(8), pair(16), pair(24)};
  }
  __device__ uint4 value(int step, int pair) const {
    const auto two = [&](int key, int column) {
      const auto one = [&](const uint16_t* from) -> uint32_t {
        return from != nullptr && column < args.head_dim ? from[column] : 0u;
      };
      return one(row(args.cache.values, key)) | one(row(args.cache.values, key + 1)) << 16;
    };
    const int key = first + 16 * step + lane % 4 * 2;
    const int column = 16 * pair + lane / 4;
    return {two(key, column), two(key + 8, column), two(key, column + 8), two(key + 8, column + 8)};
  }
};

/// What a warp has of a segment: of rows lane / 4 + {0, 8} the softmax, scores in powers of two,
/// and the sums of all columns.
template <int kDim, bool kUnified>
struct WarpRows {
  uint4 queries[kDim / 16];  ///< operands: of each 16 elements (row, k), (row + 8, k), and k + 8
  float sums[kDim / 8][4];
  float highest[2];
  float total[2];     ///< of exponentials: this thread's; of all after gather()
  float distance[2];  ///< the same, from the unified maximum
  int begin[2];       ///< keys that the rows see
  int end[2];
  int lane;

  /// Two elements, from 8 i on, of row lane / 4 + 8 half.
  __device__ uint32_t& query(int half, int i) {
    uint4& of = queries[i / 2];
    return i % 2 == 0 ? (half == 0 ? of.x : of.y) : (half == 0 ? of.z : of.w);
  }

  __device__ void clear(float start) {
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[j][i] = 0;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = start;
      total[half] = 0;
    }
  }

  /// kExact: less the highest score so far; else less `highest` as it is.
  template <bool kExact, class Stage>
  __device__ void take(const AttentionDecodeArgs& args, const Stage& stage, int first) {
    float s[4][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
        const uint4 key = stage.key(tile, step);
        mma_bf16(s[tile], queries[2 * step], key.x, key.y);
        mma_bf16(s[tile], queries[2 * step + 1], key.z, key.w);
      }
    }
    if (args.soft_cap > 0) {
      const float inner = args.scale / args.soft_cap;
      const float outer = args.soft_cap * kLog2E;
#pragma unroll
      for (auto& tile : s) {
#pragma unroll
        for (float& x : tile) {
          x = outer * tanh_fast(x * inner);
        }
      }
    } else {
      const float scale = args.scale * kLog2E;
#pragma unroll
      for (auto& tile : s) {
#pragma unroll
        for (float& x : tile) {
          x *= scale;
        }
      }
    }
    // What is not seen weighs nothing. Beside a maximum that stays it can be told from a score of
    // minus infinity, which is far away.
    constexpr float kHidden = kExact ? -INFINITY : -FLT_MAX;
    if (first < max(begin[0], begin[1]) || first + kKeys > min(end[0], end[1])) {
#pragma unroll
      for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first + 8 * tile + lane % 4 * 2 + i % 2;
          s[tile][i] = key >= begin[i / 2] && key < end[i / 2] ? s[tile][i] : kHidden;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto each = [&](const auto& f) {
#pragma unroll
        for (auto& tile : s) {
          f(tile[2 * half]);
          f(tile[2 * half + 1]);
        }
      };
      float shift = highest[half];
      if constexpr (kExact) {
        float next = highest[half];
        each([&](float score) { next = fmaxf(next, score); });
        next = fmaxf(next, __shfl_xor_sync(~0u, next, 1));
        next = fmaxf(next, __shfl_xor_sync(~0u, next, 2));
        shift = softmax_shift(next);
        const float rescale = exp2_fast(highest[half] - shift);
        highest[half] = next;
        total[half] *= rescale;
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j) {
          sums[j][2 * half] *= rescale;
          sums[j][2 * half + 1] *= rescale;
        }
      } else {
        each([&](float score) {
          distance[half] =
              score == kHidden ? distance[half] : fmaxf(distance[half], fabsf(score - shift));
        });
      }
      each([&](float& score) {
        score = exp2_fast(score - shift);
        total[half] += score;
      });
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const auto& upper = s[2 * step];
      const auto& lower = s[2 * step + 1];
      const uint4 weights = {pack_bf16x2(upper[0], upper[1]), pack_bf16x2(upper[2], upper[3]),
                             pack_bf16x2(lower[0], lower[1]), pack_bf16x2(lower[2], lower[3])};
#pragma unroll
      for (int pair = 0; pair < kDim / 16; ++pair) {
        const uint4 value = stage.value(step, pair);
        mma_bf16(sums[2 * pair], weights, value.x, value.y);
        mma_bf16(sums[2 * pair + 1], weights, value.z, value.w);
      }
    }
  }

  __device__ void gather() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int distance_of_lanes = 1; distance_of_lanes < 4; distance_of_lanes *= 2) {
        total[half] += __shfl_xor_sync(~0u, total[half], distance_of_lanes);
        distance[half] =
            fmaxf(distance[half], __shfl_xor_sync(~0u, distance[half], distance_of_lanes));
      }
    }
  }
};

/// Where a row's results go.
__device__ void store_result(const Params& p, const KeySegment& segment, const Job& job, int row,
                             int column, const float4& x, float highest, float total,
                             float distance) {
  const AttentionDecodeArgs& args = p.args;
  const int64_t line = job.line(p, row);
  const int head = job.head(p, row);
  if (column < args.head_dim) {
    const bool none = decode_keys(args, segment.length, job.token(p, row)).size() == 0;
    const float factor = none ? 0 : softmax_factor(args.sinks, head, total, highest);
    store_x4(args.out.data, args.out.dtype, line * args.out.stride + head * args.head_dim + column,
             {x.x * factor, x.y * factor, x.z * factor, x.w * factor});
  }
  if (column == 0 && args.distances != nullptr) {
    args.distances[line * args.query_heads + head] = distance * kLn2;
  }
}

/// Softmaxes of a row over kCount sets of its keys become one, and their sums; `of(i)`: of set i
/// the highest score, the sum of exponentials and the distance.
template <int kCount>
struct JoinedRow {
  float highest = -INFINITY;
  float total = 0;
  float distance = 0;
  float factors[kCount];

  template <class Of>
  __device__ explicit JoinedRow(const Of& of) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      highest = fmaxf(highest, of(i).x);
      distance = fmaxf(distance, of(i).z);
    }
    const float shift = softmax_shift(highest);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      factors[i] = exp2_fast(of(i).x - shift);
      total += of(i).y * factors[i];
    }
  }

  /// `sums(i)`: where four columns of set i are.
  template <class Sums>
  __device__ float4 columns(const Sums& sums) const {
    float4 sum{};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float4 x = *reinterpret_cast<const float4*>(sums(i));
      sum.x += x.x * factors[i];
      sum.y += x.y * factors[i];
      sum.z += x.z * factors[i];
      sum.w += x.w * factors[i];
    }
    return sum;
  }
};

/// The warps' sums come together: calls softmax(row, joined) of all rows that blocks of the cluster
/// have, also of those that are not there, and store(row, column, sums of four columns, joined) of
/// the first `rows`.
template <int kDim, int kCluster, bool kUnified, class Softmax, class Store>
__device__ void gather_rows(const Shared<kDim, kCluster>& shared,
                            const WarpRows<kDim, kUnified>& held, int rows, int warp,
                            const Softmax& softmax, const Store& store) {
  constexpr int kColumns = Shared<kDim, kCluster>::kSumColumns;
  const int thread = threadIdx.x;
  const int lane = thread % 32;
  const auto joined = [&](int row) {
    return JoinedRow<kWarps>([&](int w) {
      return float3{shared.softmax(0, w, row), shared.softmax(1, w, row),
                    shared.softmax(2, w, row)};
    });
  };
#pragma unroll
  for (int begin = 0; begin < kDim; begin += kColumns) {
    named_sync(kTeam, kTeamThreads);  // what lay there has been read
    if (begin == 0 && lane % 4 == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
        shared.softmax(0, warp, row) = held.highest[half];
        shared.softmax(1, warp, row) = held.total[half];
        shared.softmax(2, warp, row) = kUnified ? held.distance[half] : 0;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      if (row < rows) {
#pragma unroll
        for (int j = 0; j < kColumns / 8; ++j) {
          const auto& of = held.sums[begin / 8 + j];
          *reinterpret_cast<float2*>(shared.sums(warp, row) + 8 * j + lane % 4 * 2) = {
              of[2 * half], of[2 * half + 1]};
        }
      }
    }
    named_sync(kTeam, kTeamThreads);
    if (begin == 0 && thread < kCluster * Shared<kDim, kCluster>::kOwnRows) {
      softmax(thread, joined(min(thread, kRows - 1)));
    }
#pragma unroll 1
    for (int i = thread; i < rows * (kColumns / 4); i += kTeamThreads) {
      const int row = i / (kColumns / 4);
      const int column = i % (kColumns / 4) * 4;
      const auto of = joined(row);
      store(row, begin + column, of.columns([&](int w) { return shared.sums(w, row) + column; }),
            of);
    }
  }
}

/// A block's rows are stored, or are a part of those of a job that units share.
template <int kDim, bool kUnified>
__device__ void store_rows(const Params& p, const Shared<kDim, 1>& shared,
                           const KeyShares<kKeys>& shares, const KeySegment& segment,
                           const Job& job, const WarpRows<kDim, kUnified>& held, int unit, int warp,
                           uint32_t* arrived) {
  using Parts = Part<kDim>;
  const auto part_at = [&](int place) { return p.parts + int64_t{place} * Parts::kFloats; };
  float* const part = segment.whole() ? nullptr : part_at(shares.place(segment, unit));
  gather_rows(
      shared, held, job.rows, warp,
      [&](int row, const auto& joined) {
        if (part != nullptr) {
          *Parts::softmax(part, row, 0) = {joined.highest, joined.total};
          Parts::distance(part, row) = joined.distance;
        }
      },
      [&](int row, int column, const float4& sum, const auto& joined) {
        if (part != nullptr) {
          *reinterpret_cast<float4*>(part + row * kDim + column) = sum;
        } else {
          store_result(p, segment, job, row, column, sum, joined.highest, joined.total,
                       joined.distance);
        }
      });
  if (part == nullptr) {
    return;
  }
  const int count = shares.unit_count(segment);
  const int thread = threadIdx.x;
  if (arrives_last<kTeamThreads>(p.counters + segment.job, count, thread, kTeam, arrived)) {
    const int first = shares.place(segment, shares.first_unit(segment));
    const auto part_of = [&](int i) { return part_at(shares.place_of_part(first, i)); };
    Parts::template merge<kTeamThreads>(thread, 0, 0, job.rows, count, part_of,
                                        [&](int r, int c, const float4& x, float h, float t) {
                                          float farthest = 0;
                                          for (int i = 0; kUnified && c == 0 && i < count; ++i) {
                                            farthest = fmaxf(
                                                farthest, __ldcg(&Parts::distance(part_of(i), r)));
                                          }
                                          store_result(p, segment, job, r, c, x, h, t, farthest);
                                        });
  }
}

/// Blocks of a cluster send one another their rows and add up those that are theirs, in the order
/// of the blocks; `number` of the cluster's segment.
template <int kDim, int kCluster, bool kUnified>
__device__ void exchange_rows(const Params& p, const Shared<kDim, kCluster>& shared,
                              const KeySegment& segment, const Job& job,
                              const WarpRows<kDim, kUnified>& held, int number, int rank,
                              int warp) {
  using Memory = Shared<kDim, kCluster>;
  constexpr int kOwn = Memory::kOwnRows;
  const int own_rows = min(kOwn, max(0, job.rows - rank * kOwn));
  if (threadIdx.x == 0) {
    shared.arrived(number).arrive_expect(kCluster * (kOwn * 4 + own_rows * kDim) * 4);
  }
  const uint32_t own_mail = smem_address(shared.mail(number, rank));
  const uint32_t own_barrier = smem_address(&shared.arrived(number));
  gather_rows(
      shared, held, job.rows, warp,
      [&](int row, const auto& joined) {
        const int owner = row / kOwn;
        store_remote(cluster_address(own_mail, owner) + (kOwn * kDim + row % kOwn * 4) * 4,
                     float4{joined.highest, joined.total, joined.distance, 0},
                     cluster_address(own_barrier, owner));
      },
      [&](int row, int column, const float4& sum, const auto& /*joined*/) {
        const int owner = row / kOwn;
        store_remote(cluster_address(own_mail, owner) + (row % kOwn * kDim + column) * 4, sum,
                     cluster_address(own_barrier, owner));
      });
  const int thread = threadIdx.x;
  shared.arrived(number).wait(number / 2 & 1);
  if (thread >= own_rows * kDim / 4) {
    return;
  }
  const int row = thread / (kDim / 4);
  const int column = thread % (kDim / 4) * 4;
  const JoinedRow<kCluster> joined([&](int from) {
    return reinterpret_cast<const float4*>(shared.mail(number, from) + kOwn * kDim)[row];
  });
  const float4 sum =
      joined.columns([&](int from) { return shared.mail(number, from) + row * kDim + column; });
  store_result(p, segment, job, rank * kOwn + row, column, sum, joined.highest, joined.total,
               joined.distance);
}

template <int kDim, int kCluster, bool kUnified>
__global__ void __launch_bounds__(kThreads, 1)
    attention_decode_mma(const __grid_constant__ CUtensorMap keys,
                         const __grid_constant__ CUtensorMap values,
                         const __grid_constant__ Params p) {
  using Memory = Shared<kDim, kCluster>;
  extern __shared__ __align__(1024) char memory[];
  __shared__ KeyShares<kKeys>::Scratch dealing;
  __shared__ uint32_t arrived;
  const Memory shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int unit = static_cast<int>(blockIdx.x) / kCluster;
  int rank = 0;
  if constexpr (kCluster > 1) {
    rank = static_cast<int>(cluster_rank());
  }
  const auto init_barriers = [&] {
    for (int slot = 0; slot < Memory::kStages; ++slot) {
      shared.full(slot).init(1);
      shared.empty(slot).init(1);
    }
    for (int i = 0; i < Memory::kMails; ++i) {
      shared.arrived(i).init(1);
    }
    fence_barriers();
  };
  if (kCluster == 1 && threadIdx.x == 0) {
    init_barriers();
  }
  begin_in_turn();
  auto shares = kCluster > 1
                    ? KeyShares<kKeys>::whole(p.jobs(true), p.units, unit)
                    : KeyShares<kKeys>::deal<kThreads>(p.jobs(false), p.units, unit, dealing);
  const int early = early_stages<kDim, kCluster>(p, unit, rank);
  if (warp >= kWarps) {
    lower_registers<kFeederRegisters>();
    if constexpr (kCluster > 1) {
      if (threadIdx.x == kTeamThreads) {
        init_barriers();
      }
      __syncwarp();
      cluster_arrive();
      if (threadIdx.x == kTeamThreads) {
        feed_early(shared, keys, values, p, unit, rank, early);
      }
      __syncwarp();
      cluster_wait();
    }
    if (warp == kWarps) {
      feed(shared, shares, keys, values, p, rank, early);
    }
    return;
  }
  raise_registers<kRegisters>();
  if constexpr (kCluster > 1) {
    cluster_arrive();
  }

  const AttentionDecodeArgs& args = p.args;
  int turn = 0;    // stages of the block before this segment's
  int number = 0;  // of segments
  while (shares.more()) {
    const Job job(p, shares.job());
    WarpRows<kDim, kUnified> held;
    held.lane = lane;
    // Queries are asked for before the length, which is waited for. Rows that are not there are
    // the last one again.
    int rows[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      rows[half] = min(lane / 4 + 8 * half, job.rows - 1);
      const uint16_t* from = static_cast<const uint16_t*>(args.q.data) +
                             job.line(p, rows[half]) * args.q.stride +
                             job.head(p, rows[half]) * args.head_dim;
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const int k = min(8 * i + lane % 4 * 2, static_cast<int>(args.head_dim) - 2);
        held.query(half, i) = *reinterpret_cast<const uint32_t*>(from + k);
      }
    }
    if constexpr (kCluster > 1) {
      if (number == 0) {
        cluster_wait();  // all blocks' barriers are there
      }
    }
    KeySegment segment;
    shares.next(segment);
    if (args.head_dim < kDim) {
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        if (8 * i >= args.head_dim) {
          held.query(0, i) = 0;
          held.query(1, i) = 0;
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      held.distance[half] = 0;
      const Range seen = decode_keys(args, segment.length, job.token(p, rows[half]));
      held.begin[half] = static_cast<int>(seen.begin);
      held.end[half] = static_cast<int>(seen.end);
    }
    const auto oldest = static_cast<int>(decode_keys(args, segment.length, 0).begin);
    held.clear(kUnified ? args.unified_maximum * kLog2E : -INFINITY);

    // Whole stages, those whose number is the warp's.
    constexpr int kTakers = Memory::kTakers;
    const int stages = max(0, segment.end - segment.begin - rank + kCluster - 1) / kCluster;
    const int mine = warp < kTakers ? (warp - turn % kTakers + kTakers) % kTakers : INT_MAX;
    const auto first_key = [&](int i) { return (segment.begin + rank + i * kCluster) * kKeys; };
    const int brought = number == 0 ? max(stages, early) : stages;
    for (int i = mine; i < brought; i += kTakers) {
      const int slot = (turn + i) % Memory::kStages;
      const int first = first_key(i);
      shared.full(slot).wait((turn + i) / Memory::kStages & 1);
      if (i >= stages) {  // no keys of the sequence
        __syncwarp();
        if (lane == 0) {
          shared.empty(slot).arrive();
        }
        continue;
      }
      if (first < oldest || first + kKeys > segment.length) {
        // What nobody sees may be NaN, which no weight of zero makes harmless: zeros.
        const int key = first + lane;
        if (key < oldest || key >= segment.length) {
          for (int c = 0; c < Memory::kTiles; ++c) {
            for (int chunk = 0; chunk < 8; ++chunk) {
              *reinterpret_cast<uint4*>(shared.values(slot) + c * Memory::kTileBytes +
                                        lane * kRowBytes + chunk * 16) = {};
            }
          }
        }
        fence_shared();  // the copy engine writes there next
        __syncwarp();
      }
      const RingStage stage{smem_address(shared.keys(slot)), smem_address(shared.values(slot)),
                            lane};
      held.template take<!kUnified>(args, stage, first);
      __syncwarp();
      if (lane == 0) {
        // (The products have all that was read: what is stored of them is as good a sign.)
        shared.empty(slot).arrive_after(__float_as_uint(held.sums[kDim / 8 - 1][0]));
      }
    }
    if constexpr (kUnified) {
      const float most = kUnifiedReach * kLog2E;
      const bool far = held.distance[0] > most || held.distance[1] > most;
      if (__any_sync(~0u, far)) {
        held.clear(-INFINITY);
#pragma unroll 1
        for (int i = mine; i < stages; i += kTakers) {
          const CacheStage stage{args, job, first_key(i), oldest, segment.length, lane};
          held.template take<true>(args, stage, first_key(i));
        }
      }
    }
    turn += brought;
    held.gather();
    if constexpr (kCluster > 1) {
      exchange_rows(p, shared, segment, job, held, number, rank, warp);
    } else {
      store_rows(p, shared, shares, segment, job, held, unit, warp, &arrived);
    }
    ++number;
  }
}

size_t workspace(const AttentionDecodeArgs& /*args*/, const Plan& plan) {
  const int64_t part = kRows * (plan.tile_n + 3) * 4;
  return kCounterBytes + static_cast<size_t>(2 * plan.splits * part);
}

template <int kDim, int kCluster>
Status launch_as(const AttentionDecodeArgs& args, const Plan& plan, Stream stream) {
  const KvBlocks& cache = args.cache;
  const auto map_of = [&](const void* data) {
    return tensor_map({.data = data,
                       .format = MapFormat::bf16,
                       .rows = cache.block_rows,
                       .columns = args.head_dim,
                       .stride_bytes = args.head_dim * 2,
                       .box_rows = kKeys,
                       .box_columns = kTileColumns,
                       .planes = cache.blocks * args.kv_heads,
                       .plane_bytes = cache.head_stride * 2});
  };
  WEFT_ASSIGN(const CUtensorMap keys, map_of(cache.keys));
  WEFT_ASSIGN(const CUtensorMap values, map_of(cache.values));
  static_assert(Part<kDim>::kFloats == kRows * (kDim + 3));
  auto* memory = static_cast<std::byte*>(args.workspace.data);
  const auto kv_heads = static_cast<int>(args.kv_heads);
  const int group = static_cast<int>(args.query_heads) / kv_heads;
  const int row_tiles = decode_row_tiles(args);
  Params p{.args = args,
           .group = group,
           .row_tiles = row_tiles,
           .by_group = Divisor(group),
           .by_row_tiles = Divisor(row_tiles),
           .by_kv_heads = Divisor(kv_heads),
           .by_jobs_each = Divisor(kv_heads * row_tiles),
           .units = plan.splits,
           .parts = reinterpret_cast<float*>(memory + kCounterBytes),
           .counters = reinterpret_cast<uint32_t*>(memory)};
  const auto kernel = args.unified ? attention_decode_mma<kDim, kCluster, true>
                                   : attention_decode_mma<kDim, kCluster, false>;
  // Clusters that come before all of the launch before have left lie unevenly over the groups of
  // multiprocessors: in a row 32,768 keys of 8 heads took 49 us, and 36 without overlap; 16,384
  // 21.2 and 20.5, 8,192 12.5 and 12.9 (H200).
  constexpr int64_t kOverlapBytes = 64 << 20;
  const int64_t cache_bytes =
      args.batch * args.kv_heads * cache.positions() * args.head_dim * int64_t{4};
  LaunchShape shape{.blocks = plan.splits * kCluster,
                    .threads = plan.threads,
                    .cluster = kCluster,
                    .shared_bytes = Shared<kDim, kCluster>::kBytes,
                    .overlaps = kCluster == 1 || cache_bytes < kOverlapBytes,
                    .stream = static_cast<cudaStream_t>(stream.native)};
  if constexpr (kCluster > 1) {
    // Clusters that find no place at first would begin when the others end.
    WEFT_ASSIGN(const int most, resident_clusters(reinterpret_cast<const void*>(kernel), shape));
    p.units = std::max(1, std::min(p.units, most));
    shape.blocks = p.units * kCluster;
  }
  return launch_kernel(kernel, shape, keys, values, p);
}

/// Clusters are for heads of up to 128.
template <int kDim>
Status launch_clusters(const AttentionDecodeArgs& args, const Plan& plan, Stream stream) {
  switch (plan.cluster) {
    case 16:
      return launch_as<kDim, 16>(args, plan, stream);
    case 8:
      return launch_as<kDim, 8>(args, plan, stream);
    case 4:
      return launch_as<kDim, 4>(args, plan, stream);
    default:
      return launch_as<kDim, 1>(args, plan, stream);
  }
}

Status launch(const AttentionDecodeArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("attention_decode", args.workspace.bytes, workspace(args, plan)));
  switch (decode_columns(args.head_dim)) {
    case 64:
      return launch_clusters<64>(args, plan, stream);
    case 128:
      return launch_clusters<128>(args, plan, stream);
    case 192:
      return launch_as<192, 1>(args, plan, stream);
    default:
      return launch_as<256, 1>(args, plan, stream);
  }
}

}  // namespace

const Kernel<AttentionDecodeArgs> attention_decode = {
    plan_attention_decode, attention_decode_candidates, workspace, launch};

}  // namespace weft::hopper
