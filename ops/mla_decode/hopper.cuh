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
  Divisor by_heads;
  float score_scale = 0;  ///< with log2(e)
  int units = 0;
  int row_tiles = 0;
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
  __device__ int token(int r) const { return by_heads.divide(r); }
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

/// Looks at a sequence's table before lengths have said which sequence that is: of several the one
/// that has so many units before it where all are alike. Who feeds finds pages in L1 then. By one
/// warp.
__device__ inline void look_ahead(const MlaParams& p, int unit) {
  const LatentCache& cache = p.args.cache;
  if (cache.tables == nullptr || cache.owners != nullptr) {
    return;
  }
  constexpr int kLine = 128 / 4;
  const auto batch = static_cast<int>(p.args.batch);
  const int sequence = min(unit * batch / p.units, batch - 1);
  const int at = static_cast<int>(threadIdx.x) % 32 * kLine;
  if (at < cache.table_stride) {
    asm volatile(
        "prefetch.global.L1 [%0];" ::"l"(cache.tables + sequence * cache.table_stride + at));
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

/// Bytes of shared memory that eight warps need for `staged` bytes of each row at a time, on their
/// way to memory.
constexpr int latent_stage_bytes(int staged) { return kLatentThreads / 32 * 16 * (staged + 16); }

/// Where results of a cluster's blocks are in shared memory as they come together: pieces of 16
/// rows and 64 columns, and behind a row's columns its softmax. Rows are so far apart that 8-byte
/// stores of a warp meet no bank twice. At most 32 rows go at once: kRounds.
template <int kRows>
struct LatentPieces {
  static constexpr int kRowBytes = 64 * 4 + 32;
  static constexpr int kBytes = 16 * kRowBytes;
  static constexpr int kRounds = kRows > 32 ? 2 : 1;
  static constexpr int kGroups = kRows / 16 / kRounds;  ///< of 16 rows, in a round
  static constexpr int kColumns = kLatentRank / 64;     ///< pieces beside each other
  static constexpr int kRoundBytes = kColumns * kGroups * kBytes;

  /// Row `row` of a round, of the `column`th pieces of what begins at `base`.
  __device__ static char* row(char* base, int column, int row) {
    return base + (column * kGroups + row / 16) * kBytes + row % 16 * kRowBytes;
  }
  __device__ static float2* softmax(char* row) { return reinterpret_cast<float2*>(row + 64 * 4); }
};

/// Barriers of such an exchange; each has one phase in each.
template <int kRounds>
struct LatentExchange {
  Barrier free[kRounds];     ///< all blocks have shared memory free for what is sent in a round
  Barrier arrived[kRounds];  ///< all of it is there
  Barrier ended;             ///< and has been used, in all blocks

  __device__ void init(int blocks) {
    for (int round = 0; round < kRounds; ++round) {
      free[round].init(blocks);
      arrived[round].init(1);
    }
    ended.init(blocks);
  }
};

/// Results of a block's rows that its warps hold, and what becomes of them. `Memory` has
///   kRows, kStaged: bytes of each row on its way to memory at a time;
///   results(): latent_stage_bytes(kStaged) for that, aligned to 16;
///   Exchange, exchange(): of clusters; in round r their pieces leave staging(r) and come to
///   mail(r), LatentPieces::kRoundBytes each, of the ring and what else is free after a segment's
///   last product. staging(0) and mail(1) may be the same place: blocks meet in between.
/// `Held`, of a warp, has
///   kGroups of 16 rows, beginning with top(group), and kColumns, beginning with left();
///   at(group, half, j): columns 8 j + 2 (lane % 4) and the next of row lane / 4 + 8 half;
///   peak(group, half), sum(group, half): that row's highest score in powers of two, the sum of its
///   exponentials;
///   answers(): whether the warp is the one that says them where one is enough.
///
/// Rows go through shared memory, from where the copy engine stores them: threads' own pieces of 8
/// bytes would take it five times as long, and from block to block twice. What is part of a
/// sequence that other units share is announced at the end, when nothing is read any more: to be
/// seen by others takes as long as all the reading that is under way, 17 us with a multiprocessor's
/// 180 KB of it.
template <class Memory, int kCluster>
class LatentResults {
 public:
  static constexpr int kRows = Memory::kRows;
  using Part = PartRows<kRows, kLatentRank, kCluster>;

  __device__ LatentResults(const MlaParams& p, const Memory& shared, int row_tile, int unit,
                           int rank, int thread, SharedSegments* pending)
      : p_(p),
        shared_(shared),
        row_tile_(row_tile),
        unit_(unit),
        rank_(rank),
        thread_(thread),
        pending_(pending) {}

  /// By all who multiply. In clusters the ring is not to be filled again before the exchange ends.
  template <class Shares, class Held>
  __device__ void store(const Shares& shares, const KeySegment& segment, const Held& held) {
    const LatentOut out(p_, segment);
    if constexpr (kCluster == 1) {
      if (segment.whole()) {
        const auto factor = [&](int row, float total) { return out.factor(first() + row, total); };
        const auto row_at = [&](int row) { return out.at(first() + row, 0); };
        if (p_.args.out.dtype == DType::f32) {
          send(held, factor,
               [&](int row) { return static_cast<float*>(p_.args.out.data) + row_at(row); });
        } else {
          send(held, factor,
               [&](int row) { return static_cast<uint16_t*>(p_.args.out.data) + row_at(row); });
        }
        each_softmax(held, [&](int row, float highest, float total) {
          out.store_sum(first() + row, highest, total);
        });
        return;
      }
      float* part = part_at(shares.place(segment, unit_));
      send(
          held, [](int, float) { return 1.0f; }, [&](int row) { return part + row * kLatentRank; });
      each_softmax(held, [&](int row, float highest, float total) {
        *Part::softmax(part, row, 0) = {highest, total};
      });
    } else {
      if (segment.whole()) {
        exchange(held, into(out));
        return;
      }
      float* part = part_at(shares.place(segment, unit_));
      exchange(held, [&](int row, int column, const float4& x, float highest, float total) {
        *reinterpret_cast<float4*>(part + row * kLatentRank + column) = x;
        if (column == rank_ * kSlice) {
          *Part::softmax(part, row, rank_) = {highest, total};
        }
      });
    }
    if (thread_ == 0) {
      pending_->put(pending_count_, segment);
    }
    ++pending_count_;
  }

  /// After the last segment.
  template <class Shares>
  __device__ void finish(const Shares& shares) {
    wait_stores<0>();
    if (pending_count_ > 0) {
      merge_parts(shares);
    }
    if constexpr (kCluster > 1) {
      await_exchange();  // others may still read what this block has sent
    }
  }

  /// Waits until the last exchange has ended, in all blocks of the cluster.
  __device__ void await_exchange() const {
    if (exchanges_ > 0) {
      shared_.exchange().ended.wait((exchanges_ - 1) & 1);
    }
  }

 private:
  static constexpr int kSlice = kLatentRank / kCluster;  ///< columns that a block merges

  __device__ int first() const { return row_tile_ * kRows; }
  __device__ int rows() const { return min(kRows, static_cast<int>(p_.args.rows()) - first()); }
  __device__ float* part_at(int place) const {
    return p_.of_units + (int64_t{place} * p_.row_tiles + row_tile_) * Part::kFloats;
  }

  /// Calls f(row, highest, total) for each row, in one thread of a block.
  template <class Held, class F>
  __device__ void each_softmax(const Held& held, const F& f) const {
    const int lane = thread_ % 32;
    if (!held.answers() || lane % 4 != 0) {
      return;
    }
#pragma unroll
    for (int group = 0; group < Held::kGroups; ++group) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = held.top(group) + lane / 4 + 8 * half;
        if (row < rows()) {
          f(row, held.peak(group, half), held.sum(group, half));
        }
      }
    }
  }

  /// Rows times factor(row, its sum of exponentials), as to(row) has a pointer to its first column.
  template <class Held, class Factor, class To>
  __device__ void send(const Held& held, const Factor& factor, const To& to) const {
    constexpr int kBytes = sizeof(*to(0));
    constexpr int kStaged = Memory::kStaged;
    constexpr int kAtOnce = kStaged / kBytes < Held::kColumns ? kStaged / kBytes : Held::kColumns;
    const int lane = thread_ % 32;
    const auto staged = [&](int row) {
      return shared_.results() + (thread_ / 32 * 16 + row) * (kStaged + 16);
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

  /// What the cluster's blocks made of a segment comes together, each block merging some of the
  /// columns, and is stored as PartRows::merge() does.
  template <class Held, class Store>
  __device__ void exchange(const Held& held, const Store& store) {
    using Pieces = LatentPieces<kRows>;
    constexpr int kBlockPieces = Pieces::kColumns / kCluster;  // beside each other, of a block
    typename Memory::Exchange& mutual = shared_.exchange();
    const int lane = thread_ % 32;
    const uint32_t parity = exchanges_ & 1;
    const auto tell_all = [&](Barrier& barrier) {
      if (thread_ < kCluster) {
        barrier.arrive_at(thread_ % kCluster);  // (what is not executed may be computed)
      }
    };
    if (thread_ == 0) {
      for (Barrier& each : mutual.arrived) {
        each.arrive_expect(Pieces::kRoundBytes / kCluster * (kCluster - 1));
      }
    }
    named_sync(kLatentTeam, kLatentThreads);
    tell_all(mutual.free[0]);
#pragma unroll
    for (int group = 0; group < Held::kGroups; ++group) {
      const int of_all = held.top(group) / 16;
      const int round = of_all / Pieces::kGroups;
#pragma unroll
      for (int c = 0; c < Held::kColumns / 64; ++c) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          char* const row = Pieces::row(shared_.staging(round), held.left() / 64 + c,
                                        of_all % Pieces::kGroups * 16 + lane / 4 + 8 * half);
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            *reinterpret_cast<float2*>(row + lane % 4 * 8 + 32 * j) =
                held.at(group, half, 8 * c + j);
          }
          if (lane % 4 == 0) {
            *Pieces::softmax(row) = {held.peak(group, half), held.sum(group, half)};
          }
        }
      }
    }
    fence_shared();
    named_sync(kLatentTeam, kLatentThreads);
    // A piece a lane. The block's own stay where they are.
    constexpr int kSent = Held::kGroups * Held::kColumns / 64;
    const int group = held.top(0) / 16 + lane % Held::kGroups;
    const int column = held.left() / 64 + lane % kSent / Held::kGroups;
    const int to = column / kBlockPieces;
    const bool sends = lane < kSent && to != rank_;
#pragma unroll 1
    for (int round = 0; round < Pieces::kRounds; ++round) {
      if (sends && group / Pieces::kGroups == round) {
        mutual.free[round].wait(parity);
        const int row = group % Pieces::kGroups * 16;
        send_bytes(cluster_address(
                       smem_address(Pieces::row(shared_.mail(round),
                                                rank_ * kBlockPieces + column % kBlockPieces, row)),
                       to),
                   Pieces::row(shared_.staging(round), column, row), Pieces::kBytes,
                   cluster_address(smem_address(&mutual.arrived[round]), to));
      }
      __syncwarp();
      mutual.arrived[round].wait(parity);
      constexpr int kRoundRows = 16 * Pieces::kGroups;
#pragma unroll 1
      for (int i = thread_ / 16; i < kRoundRows * kBlockPieces; i += kLatentThreads / 16) {
        const int row = i % kRoundRows;
        const auto from = [&](int rank) {
          return Pieces::row(rank == rank_ ? shared_.staging(round) : shared_.mail(round),
                             rank * kBlockPieces + i / kRoundRows, row);
        };
        float2 softmax[kCluster];
        float highest = -INFINITY;
#pragma unroll
        for (int rank = 0; rank < kCluster; ++rank) {
          softmax[rank] = *Pieces::softmax(from(rank));
          highest = fmaxf(highest, softmax[rank].x);
        }
        float total = 0;
        float4 sum{};
#pragma unroll
        for (int rank = 0; rank < kCluster; ++rank) {
          const float factor = exp2_fast(softmax[rank].x - softmax_shift(highest));
          const float4 x = reinterpret_cast<const float4*>(from(rank))[lane % 16];
          total += softmax[rank].y * factor;
          sum.x += x.x * factor;
          sum.y += x.y * factor;
          sum.z += x.z * factor;
          sum.w += x.w * factor;
        }
        const int of_tile = round * kRoundRows + row;
        if (of_tile < rows()) {
          store(of_tile, rank_ * kSlice + i / kRoundRows * 64 + lane % 16 * 4, sum, highest, total);
        }
      }
      named_sync(kLatentTeam, kLatentThreads);
      if (round + 1 < Pieces::kRounds) {
        tell_all(mutual.free[round + 1]);
      }
    }
    tell_all(mutual.ended);
    ++exchanges_;
  }

  template <class Shares>
  __device__ void merge_parts(const Shares& shares) {
    merge_shared<kLatentThreads>(
        *pending_, pending_count_, shares, thread_, kLatentTeam, kMergePatience,
        [&](int job) { return p_.counters + (job * p_.row_tiles + row_tile_) * kCluster + rank_; },
        [&](const KeySegment& segment, int parts, int place, int share) {
          const int pieces = rows() * Part::kPieces;
          Part::template merge_pieces<kLatentThreads>(
              thread_, rank_, {pieces * share / parts, pieces * (share + 1) / parts}, parts, place,
              [&](int i) { return part_at(i); }, reinterpret_cast<float*>(shared_.results()),
              [] { named_sync(kLatentTeam, kLatentThreads); }, into(LatentOut(p_, segment)));
        });
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
  const Memory& shared_;
  const int row_tile_;
  const int unit_;
  const int rank_;
  const int thread_;
  SharedSegments* const pending_;
  int pending_count_ = 0;
  uint32_t exchanges_ = 0;
};

}  // namespace weft::hopper
