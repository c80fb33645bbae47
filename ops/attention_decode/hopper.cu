// attention_decode on sm_90a, bound by reading the cache. The query heads of a KV head, times the
// query tokens, are the rows of mma.m16n8k16, so that keys and values are read once for all. A ring
// of stages of 32 keys and values, which the copy engine fills, passes eight warps, each of which
// takes whole stages with a softmax and sums of its own: none waits for another before the end of a
// segment, where the warps' sums meet. Products are bf16, sums f32.
#include <cfloat>

#include "arch/hopper/attention.cuh"
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
  int row_tiles = 0;
  int units = 0;
  float* parts = nullptr;        ///< [unit][2]: of jobs that units share
  uint32_t* counters = nullptr;  ///< [job]

  __device__ int group() const { return static_cast<int>(args.query_heads / args.kv_heads); }
  __device__ KeyJobs jobs() const {
    const int each = static_cast<int>(args.kv_heads) * row_tiles;
    return {args.lengths, static_cast<int>(args.batch) * each, each,
            args.window > 0 ? static_cast<int>(args.window + args.tokens) - 1 : 0};
  }
};

/// What a job is.
struct Job {
  int sequence;
  int kv_head;
  int first;  ///< of its rows
  int rows;

  __device__ Job(const Params& p, int index) {
    const int kv_heads = static_cast<int>(p.args.kv_heads);
    const int tile = index % p.row_tiles;
    kv_head = index / p.row_tiles % kv_heads;
    sequence = index / p.row_tiles / kv_heads;
    first = tile * kRows;
    rows = min(kRows, p.group() * static_cast<int>(p.args.tokens) - first);
  }
  __device__ int token(const Params& p, int row) const { return (first + row) / p.group(); }
  __device__ int head(const Params& p, int row) const {
    return kv_head * p.group() + (first + row) % p.group();
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

template <int kDim>
struct Shared {
  static constexpr int kTileBytes = kKeys * kRowBytes;  ///< 64 columns of keys, or of values
  static constexpr int kTiles = kDim / kTileColumns;
  static constexpr int kStageBytes = 2 * kTiles * kTileBytes;
  static constexpr int kStages = decode_stages(kDim);
  static constexpr int kTakers = kStages < kWarps ? kStages : kWarps;  ///< warps that have stages
  static_assert(kStages % kTakers == 0);
  /// 64 columns of the warps' sums; 8-byte accesses of a warp meet no bank twice.
  static constexpr int kPitch = kTileColumns + 8;
  static constexpr int kSumFloats = kWarps * kRows * kPitch;
  static constexpr int kSoftmaxFloats = 3 * kWarps * kRows;
  static constexpr int kBytes =
      1024 + kStages * kStageBytes + (kSumFloats + kSoftmaxFloats) * 4 + 2 * kStages * 8;
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
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(sums(0, 0) + kSumFloats + kSoftmaxFloats)[slot];
  }
  __device__ Barrier& empty(int slot) const { return full(kStages + slot); }

  using Cursor = RingCursor<kStages>;
};

template <int kDim>
__device__ void feed(const Shared<kDim>& shared, KeyShares<kKeys> shares, const CUtensorMap& keys,
                     const CUtensorMap& values, const Params& p) {
  using Memory = Shared<kDim>;
  const bool chosen = elect_one();
  const KvBlocks& cache = p.args.cache;
  typename Memory::Cursor cursor;
  KeySegment segment;
  while (shares.next(segment)) {
    const Job job(p, segment.job);
    KeyPages<static_cast<int>(kKvPage)> pages(cache.tables, cache.table_stride, job.sequence,
                                              segment.length);
    for (int i = segment.begin; i < segment.end; ++i, cursor.advance()) {
      const int first = i * kKeys;
      const bool some = first < segment.length;  // of no keys nothing is read but zeros
      const KeyPlace place = some ? pages.place(first) : KeyPlace{};
      shared.empty(cursor.slot).wait(cursor.parity ^ 1);
      if (chosen) {
        Barrier& full = shared.full(cursor.slot);
        if (some) {
          const int plane = place.block * static_cast<int>(p.args.kv_heads) + job.kv_head;
          full.arrive_expect(Memory::kStageBytes);
#pragma unroll
          for (int c = 0; c < Memory::kTiles; ++c) {
            load_plane_tile(shared.keys(cursor.slot) + c * Memory::kTileBytes, keys,
                            c * kTileColumns, place.row, plane, full);
          }
#pragma unroll
          for (int c = 0; c < Memory::kTiles; ++c) {
            load_plane_tile(shared.values(cursor.slot) + c * Memory::kTileBytes, values,
                            c * kTileColumns, place.row, plane, full);
          }
        } else {
          full.arrive();
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
  uint4 queries[kDim / 16];
  float sums[kDim / 8][4];
  float highest[2];
  float total[2];     ///< of exponentials: this thread's; of all after gather()
  float distance[2];  ///< the same, from the unified maximum
  int begin[2];       ///< keys that the rows see
  int end[2];
  int lane;

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

/// The warps' sums come together, to be stored or to be a part of those.
template <int kDim, bool kUnified>
__device__ void store_rows(const Params& p, const Shared<kDim>& shared,
                           const KeyShares<kKeys>& shares, const KeySegment& segment,
                           const Job& job, const WarpRows<kDim, kUnified>& held, int unit, int warp,
                           uint32_t* arrived) {
  using Parts = Part<kDim>;
  const int lane = threadIdx.x % 32;
  if (lane % 4 == 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      shared.softmax(0, warp, row) = held.highest[half];
      shared.softmax(1, warp, row) = held.total[half];
      shared.softmax(2, warp, row) = kUnified ? held.distance[half] : 0;
    }
  }
  named_sync(kTeam, kTeamThreads);
  // From here on a thread has four columns of a row.
  const int row = static_cast<int>(threadIdx.x) / (kTileColumns / 4);
  const int column = static_cast<int>(threadIdx.x) % (kTileColumns / 4) * 4;
  float highest = -INFINITY;
  float distance = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    highest = fmaxf(highest, shared.softmax(0, w, row));
    distance = fmaxf(distance, shared.softmax(2, w, row));
  }
  const float shift = softmax_shift(highest);
  float factors[kWarps];
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    factors[w] = exp2_fast(shared.softmax(0, w, row) - shift);
    total += shared.softmax(1, w, row) * factors[w];
  }
  const auto part_at = [&](int place) { return p.parts + int64_t{place} * Parts::kFloats; };
  float* const part = segment.whole() ? nullptr : part_at(shares.place(segment, unit));
#pragma unroll
  for (int tile = 0; tile < kDim / kTileColumns; ++tile) {
    if (tile > 0) {
      named_sync(kTeam, kTeamThreads);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto& of = held.sums[8 * tile + j];
        *reinterpret_cast<float2*>(shared.sums(warp, lane / 4 + 8 * half) + 8 * j +
                                   lane % 4 * 2) = {of[2 * half], of[2 * half + 1]};
      }
    }
    named_sync(kTeam, kTeamThreads);
    float4 sum{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const auto& x = *reinterpret_cast<const float4*>(shared.sums(w, row) + column);
      sum.x += x.x * factors[w];
      sum.y += x.y * factors[w];
      sum.z += x.z * factors[w];
      sum.w += x.w * factors[w];
    }
    if (row < job.rows) {
      const int at = tile * kTileColumns + column;
      if (part == nullptr) {
        store_result(p, segment, job, row, at, sum, highest, total, distance);
      } else {
        *reinterpret_cast<float4*>(part + row * kDim + at) = sum;
        if (at == 0) {
          *Parts::softmax(part, row, 0) = {highest, total};
          Parts::distance(part, row) = distance;
        }
      }
    }
  }
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

template <int kDim, bool kUnified>
__global__ void __launch_bounds__(kThreads, 1)
    attention_decode_mma(const __grid_constant__ CUtensorMap keys,
                         const __grid_constant__ CUtensorMap values,
                         const __grid_constant__ Params p) {
  using Memory = Shared<kDim>;
  extern __shared__ __align__(1024) char memory[];
  __shared__ KeyShares<kKeys>::Scratch dealing;
  __shared__ uint32_t arrived;
  const Memory shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Memory::kStages; ++slot) {
      shared.full(slot).init(1);
      shared.empty(slot).init(1);
    }
    fence_barriers();
  }
  begin_in_turn();
  const int unit = blockIdx.x;
  auto shares = KeyShares<kKeys>::deal<kThreads>(p.jobs(), p.units, unit, dealing);
  if (warp >= kWarps) {
    lower_registers<kFeederRegisters>();
    if (warp == kWarps) {
      feed(shared, shares, keys, values, p);
    }
    return;
  }
  raise_registers<kRegisters>();

  const AttentionDecodeArgs& args = p.args;
  int turn = 0;  // stages before this segment's
  KeySegment segment;
  while (shares.next(segment)) {
    const Job job(p, segment.job);
    WarpRows<kDim, kUnified> held;
    held.lane = lane;
    const uint16_t* queries[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
      held.distance[half] = 0;
      queries[half] = nullptr;
      held.begin[half] = 0;  // a row that is not there hides nothing
      held.end[half] = segment.length;
      if (row < job.rows) {
        queries[half] = static_cast<const uint16_t*>(args.q.data) +
                        job.line(p, row) * args.q.stride + job.head(p, row) * args.head_dim;
        const Range seen = decode_keys(args, segment.length, job.token(p, row));
        held.begin[half] = static_cast<int>(seen.begin);
        held.end[half] = static_cast<int>(seen.end);
      }
    }
    const auto pair = [&](int half, int k) {
      return queries[half] != nullptr && k < args.head_dim
                 ? *reinterpret_cast<const uint32_t*>(queries[half] + k)
                 : 0u;
    };
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int k = 16 * i + lane % 4 * 2;
      held.queries[i] = {pair(0, k), pair(1, k), pair(0, k + 8), pair(1, k + 8)};
    }
    const auto oldest = static_cast<int>(decode_keys(args, segment.length, 0).begin);
    held.clear(kUnified ? args.unified_maximum * kLog2E : -INFINITY);

    // Whole stages, those whose number is the warp's.
    constexpr int kTakers = Memory::kTakers;
    const int mine =
        warp < kTakers ? segment.begin + (warp - turn % kTakers + kTakers) % kTakers : segment.end;
    for (int i = mine; i < segment.end; i += kTakers) {
      const int number = turn + i - segment.begin;
      const int slot = number % Memory::kStages;
      const int first = i * kKeys;
      shared.full(slot).wait(number / Memory::kStages & 1);
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
        for (int i = mine; i < segment.end; i += kTakers) {
          const CacheStage stage{args, job, i * kKeys, oldest, segment.length, lane};
          held.template take<true>(args, stage, i * kKeys);
        }
      }
    }
    turn += segment.end - segment.begin;
    held.gather();
    store_rows(p, shared, shares, segment, job, held, unit, warp, &arrived);
  }
}

size_t workspace(const AttentionDecodeArgs& /*args*/, const Plan& plan) {
  const int64_t part = kRows * (plan.tile_n + 3) * 4;
  return kCounterBytes + static_cast<size_t>(2 * plan.splits * part);
}

template <int kDim>
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
  const Params p{.args = args,
                 .row_tiles = decode_row_tiles(args),
                 .units = plan.splits,
                 .parts = reinterpret_cast<float*>(memory + kCounterBytes),
                 .counters = reinterpret_cast<uint32_t*>(memory)};
  return launch_kernel(
      args.unified ? attention_decode_mma<kDim, true> : attention_decode_mma<kDim, false>,
      {.blocks = plan.splits,
       .threads = plan.threads,
       .shared_bytes = Shared<kDim>::kBytes,
       .overlaps = true,
       .stream = static_cast<cudaStream_t>(stream.native)},
      keys, values, p);
}

Status launch(const AttentionDecodeArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("attention_decode", args.workspace.bytes, workspace(args, plan)));
  switch (decode_columns(args.head_dim)) {
    case 64:
      return launch_as<64>(args, plan, stream);
    case 128:
      return launch_as<128>(args, plan, stream);
    case 192:
      return launch_as<192>(args, plan, stream);
    default:
      return launch_as<256>(args, plan, stream);
  }
}

}  // namespace

const Kernel<AttentionDecodeArgs> attention_decode = {
    plan_attention_decode, attention_decode_candidates, workspace, launch};

}  // namespace weft::hopper
