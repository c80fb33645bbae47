// What both kernels of mla_decode on sm_90a have in common: their operands, how rows in e4m3fn
// become bf16 in shared memory, and where results go.
#pragma once

#include "arch/hopper/attention.cuh"
#include "arch/hopper/bulk_store.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/resident.cuh"
#include "ops/hopper_key_shares.cuh"
#include "ops/mla_decode/hopper_plan.h"

namespace weft::hopper {

inline constexpr int kLatentTileColumns = kRowBytes / 2;  ///< bf16 in a row of a shared tile
inline constexpr int kLatentTiles = kLatentRow / kLatentTileColumns;
inline constexpr int kLatentThreads = 256;  ///< that multiply; those that load come after them
inline constexpr int kMlaThreads = kLatentThreads + 128;
/// Registers of those that load and of those that multiply; rows in e4m3fn pass through the
/// former's.
inline constexpr int kFeederRegisters = 24;
inline constexpr int kRegisters = 240;
inline constexpr int kFp8FeederRegisters = 88;
inline constexpr int kFp8Registers = 208;
/// Where keys are turned as they are read: those who do it keep a position's angles.
inline constexpr int kTurningFeederRegisters = 56;
inline constexpr int kTurningRegisters = 224;
/// Named barrier of theirs.
inline constexpr int kLatentTeam = 1;

struct MlaParams {
  MlaDecodeArgs args;
  float score_scale = 0;  ///< with log2(e)
  int units = 0;
  int row_tiles = 0;
  float* of_blocks = nullptr;    ///< in clusters: [block][2], results of segments in turn
  float* of_units = nullptr;     ///< [unit][2][row tile]: parts of sequences that units share
  uint32_t* counters = nullptr;  ///< [sequence][row tile][rank]

  __device__ KeyJobs jobs() const {
    return {.lengths = args.run ? nullptr : args.lengths,
            .count = static_cast<int>(args.batch),
            .step = static_cast<int>(args.tokens),
            .more = static_cast<int>(args.more),
            .alone = args.alone};
  }
  /// Which is a sequence's; in pages which table.
  __device__ int block(int sequence) const {
    return args.run ? 0 : args.cache.owners != nullptr ? args.cache.owners[sequence] : sequence;
  }
  /// Row `r` of a sequence's tokens * heads.
  __device__ int token(int r) const { return r / static_cast<int>(args.heads); }
  __device__ int seen(const KeySegment& segment, int r) const {
    const int keys = segment.length - static_cast<int>(args.tokens) + token(r) + 1;
    return max(0, min(keys, segment.length));
  }
  __device__ const uint16_t* query(int sequence, int r) const {
    const int t = token(r);
    const int head = r - t * static_cast<int>(args.heads);
    return static_cast<const uint16_t*>(args.q.data) +
           (sequence * args.tokens + t) * args.q.stride + head * kLatentRow;
  }
};

/// A segment's stages that one block of a cluster has.
template <int kCluster>
__device__ Range block_stages(const KeySegment& segment, int rank) {
  const int count = segment.end - segment.begin;
  return {segment.begin + count * rank / kCluster, segment.begin + count * (rank + 1) / kCluster};
}

/// Of warps that load nothing: the cluster's barrier is for all.
template <class Shares>
__device__ void meet_cluster(Shares shares) {
  for (KeySegment segment; shares.next(segment);) {
    cluster_arrive();
    cluster_wait();
  }
}

using LatentPages = KeyPages<static_cast<int>(kKvPage)>;

/// 32 rows in e4m3fn on their way into shared memory as bf16, by the 128 threads of four warps:
/// load() asks for them, store() writes them.
class Fp8Rows {
 public:
  static constexpr int kRows = 32;

  /// `valid` rows from `from` on; zeros stand for the others.
  __device__ void load(const char* from, int valid, int thread) {
    const int lane = thread % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = thread / 32 + 4 * i;
      const char* at = from + row * kLatentFp8Bytes;
      codes_[i] = row < valid ? *reinterpret_cast<const uint4*>(at + 16 * lane) : uint4{};
      scales_[i] =
          row < valid ? *reinterpret_cast<const float*>(at + kLatentRank + lane / 8 * 4) : 0;
    }
#pragma unroll
    for (int i = 0; i < kTurnedEach; ++i) {
      const int row = thread / 8 + 16 * i;
      const char* at = from + row * kLatentFp8Bytes + kLatentRank + 4 * kLatentScales;
      turned_[i] = row < valid ? *reinterpret_cast<const uint4*>(at + thread % 8 * 16) : uint4{};
    }
  }

  /// To rows [first, first + 32) of tiles of 64 columns, swizzled, tile_bytes from one to the next.
  __device__ void store(char* tiles, int tile_bytes, int first, int thread) const {
    const int lane = thread % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = first + thread / 32 + 4 * i;
      char* to = tiles + lane / 4 * tile_bytes;
      const uint32_t fours[4] = {codes_[i].x, codes_[i].y, codes_[i].z, codes_[i].w};
      uint32_t pairs[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        pairs[j] = scaled(fours[j / 2] >> (j % 2 * 16), scales_[i]);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<uint4*>(to +
                                  swizzle_128(row * kRowBytes + (lane % 4 * 2 + half) * 16)) = {
            pairs[4 * half], pairs[4 * half + 1], pairs[4 * half + 2], pairs[4 * half + 3]};
      }
    }
#pragma unroll
    for (int i = 0; i < kTurnedEach; ++i) {
      const int row = first + thread / 8 + 16 * i;
      *reinterpret_cast<uint4*>(tiles + (kLatentTiles - 1) * tile_bytes +
                                swizzle_128(row * kRowBytes + thread % 8 * 16)) = turned_[i];
    }
  }

 private:
  static constexpr int kEach = kRows / 4;
  static constexpr int kTurnedEach = kRows / 16;

  /// Two codes times a scale, rounded to bf16.
  __device__ static uint32_t scaled(uint32_t codes, float scale) {
    float low;
    float high;
    asm("{\n.reg .b32 pair;\n.reg .b16 low, high;\n"
        "cvt.rn.f16x2.e4m3x2 pair, %2;\n"
        "mov.b32 {low, high}, pair;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n}"
        : "=f"(low), "=f"(high)
        : "h"(static_cast<uint16_t>(codes)));
    return pack_bf16x2(low * scale, high * scale);
  }

  uint4 codes_[kEach];
  float scales_[kEach];
  uint4 turned_[kTurnedEach];
};

/// Where the results of a row tile of one sequence go.
class LatentOut {
 public:
  __device__ LatentOut(const MlaParams& p, const KeySegment& segment) : p_(p), segment_(segment) {}

  /// What row r's sums are to be multiplied by; `total` of its exponentials.
  __device__ float factor(int r, float total) const {
    return p_.seen(segment_, r) == 0 ? 0 : 1 / total;
  }
  /// Where row r's sum of a column goes, in elements.
  __device__ int64_t at(int r, int column) const {
    const int t = p_.token(r);
    const int head = r - t * static_cast<int>(p_.args.heads);
    return (segment_.job * p_.args.tokens + t) * p_.args.out.stride + head * kLatentRank + column;
  }
  /// Two columns, to where at() says.
  __device__ void store(int64_t to, float2 x) const {
    if (p_.args.out.dtype == DType::f32) {
      *reinterpret_cast<float2*>(static_cast<float*>(p_.args.out.data) + to) = x;
    } else {
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(p_.args.out.data) + to) =
          pack_bf16x2(x.x, x.y);
    }
  }
  /// `highest` in powers of two. By one thread of a row.
  __device__ void store_sum(int r, float highest, float total) const {
    if (p_.args.sums != nullptr) {
      constexpr float kLn2 = 0.693147180559945309f;
      const bool none = p_.seen(segment_, r) == 0;
      p_.args.sums[segment_.job * p_.args.tokens * p_.args.heads + r] =
          none         ? -INFINITY
          : total == 0 ? NAN  // as the row: 0 / 0
                       : (highest + log2f(total)) * kLn2;
    }
  }

 private:
  const MlaParams& p_;
  const KeySegment& segment_;
};

/// What LatentResults has in shared memory beside its rows: the segments to be announced, and
/// whether the block came last to their sequences.
struct LatentPending {
  struct Of {
    int job;
    int length;
    int stages;  ///< of the job
    int first;
    bool last;

    __device__ KeySegment segment() const {
      return {.job = job, .length = length, .to = stages, .first = first};
    }
  };
  Of of[2];
};

/// Results of kRows rows that a block's warps hold, and what becomes of them. `Held`, of a warp,
/// has
///   kGroups of 16 rows, beginning with top(group), and kColumns, beginning with left();
///   at(group, half, j): columns 8 j + 2 (lane % 4) and the next of row lane / 4 + 8 half;
///   sum(group, half): of that row's exponentials;
///   each_softmax(f): calls f(row, highest score in powers of two, the sum of its exponentials) of
///   the rows that this thread answers for.
///
/// Rows go through shared memory, from where the copy engine stores them: threads' own pieces of 8
/// bytes would take it five times as long. What is part of a sequence that other units share is
/// announced at the end, when nothing is read any more: to be seen by others takes as long as all
/// the reading that is under way, 17 us with a multiprocessor's 180 KB of it.
template <int kRows, int kCluster>
class LatentResults {
 public:
  using Part = PartRows<kRows, kLatentRank, kCluster>;

  /// Bytes of shared memory that eight warps need for kStaged bytes of each row at a time.
  static constexpr int stage_bytes(int staged) { return kLatentThreads / 32 * 16 * (staged + 16); }

  /// `stage`: so many, aligned to 16.
  __device__ LatentResults(const MlaParams& p, int row_tile, int unit, int rank, int thread,
                           char* stage, LatentPending* pending)
      : p_(p),
        row_tile_(row_tile),
        unit_(unit),
        rank_(rank),
        thread_(thread),
        stage_(stage),
        pending_(pending) {}

  template <int kStaged, class Shares, class Held>
  __device__ void store(const Shares& shares, const KeySegment& segment, const Held& held) {
    const LatentOut out(p_, segment);
    if constexpr (kCluster == 1) {
      if (segment.whole()) {
        const auto factor = [&](int row, float total) { return out.factor(first() + row, total); };
        const auto row_at = [&](int row) { return out.at(first() + row, 0); };
        if (p_.args.out.dtype == DType::f32) {
          send<kStaged>(held, factor, [&](int row) {
            return static_cast<float*>(p_.args.out.data) + row_at(row);
          });
        } else {
          send<kStaged>(held, factor, [&](int row) {
            return static_cast<uint16_t*>(p_.args.out.data) + row_at(row);
          });
        }
        held.each_softmax([&](int row, float highest, float total) {
          if (row < rows()) {
            out.store_sum(first() + row, highest, total);
          }
        });
        return;
      }
      write<kStaged>(part_at(shares.place(segment, unit_)), held);
    } else {
      // What the cluster's blocks made of the segment comes together first, each taking some of the
      // columns. A block's two places take turns: it writes one again when all have been at the
      // next barrier, and so have read it.
      const auto of_block = [&](int rank) {
        const int block = static_cast<int>(blockIdx.x) - rank_ + rank;
        return p_.of_blocks + (int64_t{block} * 2 + turn_) * Part::kFloats;
      };
      write<kStaged>(of_block(rank_), held);
      wait_stores<0>();
      __syncwarp();
      cluster_sync();
      if (segment.whole()) {
        merge(0, kCluster, of_block, into(out));
        turn_ ^= 1;
        return;
      }
      float* part = part_at(shares.place(segment, unit_));
      merge(0, kCluster, of_block,
            [&](int row, int column, const float4& x, float highest, float total) {
              *reinterpret_cast<float4*>(part + row * kLatentRank + column) = x;
              if (column == rank_ * kSlice) {
                *Part::softmax(part, row, rank_) = {highest, total};
              }
            });
      turn_ ^= 1;
    }
    if (thread_ == 0) {
      pending_->of[pending_count_] = {segment.job, segment.length, segment.to - segment.from,
                                      segment.first, false};
    }
    ++pending_count_;  // at most twice: see KeyShares::place()
  }

  /// After the last segment.
  template <class Shares>
  __device__ void finish(const Shares& shares) {
    wait_stores<0>();
    if (pending_count_ == 0) {
      return;
    }
    named_sync(kLatentTeam, kLatentThreads);
    if (thread_ == 0) {
      __threadfence();
      for (int i = 0; i < pending_count_; ++i) {
        LatentPending::Of& each = pending_->of[i];
        uint32_t* counter = p_.counters + (each.job * p_.row_tiles + row_tile_) * kCluster + rank_;
        each.last = comes_last(counter, shares.unit_count(each.segment()));
      }
      __threadfence();
    }
    named_sync(kLatentTeam, kLatentThreads);
    for (int i = 0; i < pending_count_; ++i) {
      if (pending_->of[i].last) {
        const KeySegment segment = pending_->of[i].segment();
        const int begin = shares.place(segment, shares.first_unit(segment));
        merge(
            rank_, shares.unit_count(segment),
            [&](int part) { return part_at(Shares::place_of_part(begin, part)); },
            into(LatentOut(p_, segment)));
      }
    }
  }

 private:
  static constexpr int kSlice = kLatentRank / kCluster;  ///< columns that a block merges

  __device__ int first() const { return row_tile_ * kRows; }
  __device__ int rows() const { return min(kRows, static_cast<int>(p_.args.rows()) - first()); }
  __device__ float* part_at(int place) const {
    return p_.of_units + (int64_t{place} * p_.row_tiles + row_tile_) * Part::kFloats;
  }

  /// Rows times factor(row, its sum of exponentials), as to(row) has a pointer to its first column.
  template <int kStaged, class Held, class Factor, class To>
  __device__ void send(const Held& held, const Factor& factor, const To& to) const {
    constexpr int kBytes = sizeof(*to(0));
    constexpr int kAtOnce = kStaged / kBytes < Held::kColumns ? kStaged / kBytes : Held::kColumns;
    const int lane = thread_ % 32;
    const auto staged = [&](int row) {
      return stage_ + (thread_ / 32 * 16 + row) * (kStaged + 16);
    };
#pragma unroll
    for (int group = 0; group < Held::kGroups; ++group) {
      const int top = held.top(group);
#pragma unroll
      for (int from = 0; from < Held::kColumns; from += kAtOnce) {
        wait_stores_read<0>();
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = lane / 4 + 8 * half;
          const float times = factor(top + row, held.sum(group, half));
          char* const at = staged(row) + lane % 4 * 2 * kBytes;
#pragma unroll
          for (int j = 0; j < kAtOnce / 8; ++j) {
            const float2 x = held.at(group, half, from / 8 + j);
            if constexpr (kBytes == 4) {
              *reinterpret_cast<float2*>(at + 8 * j * kBytes) = {x.x * times, x.y * times};
            } else {
              *reinterpret_cast<uint32_t*>(at + 8 * j * kBytes) =
                  pack_bf16x2(x.x * times, x.y * times);
            }
          }
        }
        fence_shared();
        __syncwarp();
        if (lane < 16 && top + lane < rows()) {
          store_bytes(to(top + lane) + held.left() + from, staged(lane), kAtOnce * kBytes);
        }
        commit_stores();
      }
    }
  }
  template <int kStaged, class Held>
  __device__ void write(float* part, const Held& held) const {
    send<kStaged>(
        held, [](int, float) { return 1.0f; }, [&](int row) { return part + row * kLatentRank; });
    held.each_softmax([&](int row, float highest, float total) {
      if (row < rows()) {
        *Part::softmax(part, row, 0) = {highest, total};
      }
    });
  }
  template <class PartOf, class Store>
  __device__ void merge(int slice, int count, const PartOf& part, const Store& store) const {
    Part::template merge<kLatentThreads>(thread_, rank_ * kSlice, slice, rows(), count, part,
                                         store);
  }
  __device__ auto into(const LatentOut& out) const {
    return
        [out, first = first()](int row, int column, const float4& x, float highest, float total) {
          const float factor = out.factor(first + row, total);
          const int64_t to = out.at(first + row, column);
          out.store(to, {x.x * factor, x.y * factor});
          out.store(to + 2, {x.z * factor, x.w * factor});
          if (column == 0) {
            out.store_sum(first + row, highest, total);
          }
        };
  }

  const MlaParams& p_;
  const int row_tile_;
  const int unit_;
  const int rank_;
  const int thread_;
  char* const stage_;
  LatentPending* const pending_;
  int pending_count_ = 0;
  int turn_ = 0;
};

}  // namespace weft::hopper
